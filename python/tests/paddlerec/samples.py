"""What three folders of PaddleRec need to train in seconds on this data; the same for both systems:
generated lines for the demo, a tokenizer for kim, fewer tasks for maml.
"""
from __future__ import annotations

import random
from pathlib import Path

LINES = 640
TASKS, FEWER_TASKS = "range(3200)", "range(64)"
TOKENIZER = '''"""Words and marks instead of NLTK's punkt model, which must be downloaded."""
import re


def word_tokenize(text):
    return re.findall(r"\\w+|[^\\w\\s]", text)
'''


def movie_line(draw: random.Random) -> str:
    """A line as demo/movie_recommand/data/process_ml_1m.py writes it: a user, a film, a rating.

    >>> movie_line(random.Random(1)).split()[2:5]
    ['userid:1101', 'gender:0', 'age:17']
    """
    fields = [("logid", 0), ("time", 0), ("userid", draw.randrange(1, 6040)),
              ("gender", draw.randrange(2)), ("age", draw.randrange(1, 57)),
              ("occupation", draw.randrange(21)), ("movieid", draw.randrange(1, 3952))]
    fields += [("title", draw.randrange(1, 5000)) for _ in range(4)]
    fields += [("genres", draw.randrange(1, 19)) for _ in range(3)]
    fields.append(("label", draw.randrange(1, 6)))
    return " ".join(f"{name}:{value}" for name, value in fields)


def prepare(folder: str, root: Path) -> None:
    """Adds to the copy of `folder` under `root` what it lacks."""
    if folder == "demo/movie_recommand":
        draw = random.Random(1)
        for part in ("train", "test"):
            place = root / "models" / folder / "data" / part
            place.mkdir(parents=True)
            (place / "lines.txt").write_text(
                "".join(movie_line(draw) + "\n" for _ in range(LINES)))
    elif folder == "match/kim":
        package = root / "stubs" / "nltk"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("def download(name):\n    return True\n")
        (package / "tokenize.py").write_text(TOKENIZER)
    elif folder == "multitask/maml":
        reader = root / "models" / folder / "omniglot_reader.py"
        text = reader.read_text(encoding="utf-8")
        if TASKS not in text:
            raise ValueError(f"{reader} does not draw its tasks as it did: {TASKS} is missing")
        reader.write_text(text.replace(TASKS, FEWER_TASKS), encoding="utf-8")
