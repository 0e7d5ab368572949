"""Data and modules that two folders of PaddleRec do not bring along; the same for both systems."""
from __future__ import annotations

import random
from pathlib import Path

LINES = 640
TOKENIZER = '''"""Words and marks instead of NLTK's punkt model, which must be downloaded."""
import re


def word_tokenize(text):
    return re.findall(r"\\w+|[^\\w\\s]", text)
'''


def movie_line(draw: random.Random) -> str:
    """A line as demo/movie_recommand/data/process_ml_1m.py writes it: a user, a film, a rating.

    >>> movie_line(random.Random(1)).split()[2:5]
    ['userid:2201', 'gender:1', 'age:9']
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
