"""Markdown tables, and files that appear complete or not at all."""
import json
import os


def table(head, rows):
    """A Markdown table; bars in cells are escaped."""
    for row in rows:
        if len(row) != len(head):
            raise ValueError("a row of %d cells under %d headings: %r" % (len(row), len(head), row))
    cell = lambda c: str(c).replace("|", "\\|").replace("\n", " ")
    lines = [head, ["---"] * len(head)] + [list(r) for r in rows]
    return "\n".join("| " + " | ".join(cell(c) for c in line) + " |" for line in lines)


def write(path, text):
    """Writes a file under another name and renames it."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    hidden = path + ".tmp"
    with open(hidden, "w") as f:
        f.write(text)
    os.replace(hidden, path)


def save_report(folder, name, text, raw, charts):
    """Saves a report as NAME.md, NAME.json and one NAME-*.svg for each chart; returns the paths."""
    paths = []
    for suffix, content in [(".md", text), (".json", as_json(raw))] + [
            ("-%s.svg" % title, svg) for title, svg in charts.items()]:
        paths.append(os.path.join(folder, name + suffix))
        write(paths[-1], content)
    return paths


def as_json(raw):
    """JSON with one line for each entry of `runs`, so that differences between files can be read."""
    raw = dict(raw)
    runs = raw.pop("runs", None)
    text = json.dumps(raw, indent=1, sort_keys=True)
    if runs is None:
        return text + "\n"
    lines = ",\n".join("  " + json.dumps(r, sort_keys=True) for r in runs)
    body = text[:-2] + "," if raw else "{"
    return body + '\n "runs": [\n' + lines + "\n ]\n}\n"
