"""The code blocks of the documents that the package serves, by document and line.

``python seeds_blocks.py [FOLDER]`` lists them.
"""
from __future__ import annotations

import os
import re
import textwrap
from typing import Dict, Iterator, List, NamedTuple, Optional

_FENCE = re.compile(r"^(\s*)```\s*(\w*)\s*$")
_DIRECTIVE = re.compile(r"^(\s*)\.\. code-block:: (\w+)\s*$")


class Block(NamedTuple):
    """A code block: the first three characters of the document, the line of its head, its
    language (empty if it has none), and its text as printed."""

    document: str
    line: int
    language: str
    text: str

    @property
    def key(self) -> str:
        """Such as ``003:21``."""
        return f"{self.document}:{self.line}"


def folder() -> Optional[str]:
    """Where the documents are: the variable REGATTA_SEEDS, or beside the repository."""
    here = os.path.dirname(os.path.abspath(__file__))
    beside = os.path.normpath(os.path.join(here, "..", "..", "..", "shared", "seeds"))
    path = os.environ.get("REGATTA_SEEDS", beside)
    return path if os.path.isdir(path) else None


def of_text(document: str, text: str) -> Iterator[Block]:
    """The blocks of a document, in order: fenced ones, and ``code-block`` directives."""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        fence, directive = _FENCE.match(lines[at]), _DIRECTIVE.match(lines[at])
        if fence:
            end = next(i for i in range(at + 1, len(lines)) if _FENCE.match(lines[i]))
            indent = len(fence.group(1))
            body = [line[indent:] if not line[:indent].strip() else line for line in lines[at + 1:end]]
            yield Block(document, at + 1, fence.group(2), "\n".join(body) + "\n")
            at = end + 1
        elif directive:
            indent = len(directive.group(1))
            end = at + 1
            while end < len(lines) and (
                not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > indent
            ):
                end += 1
            body = textwrap.dedent("\n".join(lines[at + 1:end])).strip("\n")
            yield Block(document, at + 1, directive.group(2), body + "\n")
            at = end
        else:
            at += 1


def all_blocks(path: str) -> List[Block]:
    """The blocks of all documents of a folder."""
    blocks: List[Block] = []
    for name in sorted(os.listdir(path)):
        if name.endswith(".txt"):
            with open(os.path.join(path, name), encoding="utf-8") as file:
                blocks += of_text(name[:3], file.read())
    return blocks


def by_key(path: str) -> Dict[str, Block]:
    """The blocks of a folder by ``document:line``."""
    return {block.key: block for block in all_blocks(path)}


if __name__ == "__main__":
    import sys

    where = sys.argv[1] if len(sys.argv) > 1 else folder()
    if where is None:
        sys.exit("no documents: pass their folder, or set REGATTA_SEEDS")
    for each in all_blocks(where):
        print(f"{each.key:8} {each.language or '-':7} {len(each.text.splitlines()):3} lines")
