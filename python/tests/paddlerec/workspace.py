"""A private copy of the parts of PaddleRec that one run needs.

PaddleRec's tools write beside the model (`__pycache__`, saved models, program texts); a copy keeps
the checkout as it was.
"""
from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Dict, Optional

import samples

SKIP = shutil.ignore_patterns("__pycache__", "*.pyc", "*.md", "*.jpg", "output_model*")


def checkout() -> Optional[Path]:
    """The PaddleRec checkout named by the variable PADDLEREC, or None."""
    path = os.environ.get("PADDLEREC")
    return Path(path).resolve() if path else None


def copy(paddlerec: Path, folder: str, into: Path) -> Path:
    """Copies tools/ and models/`folder` of `paddlerec` to `into`; returns the model's folder.

    Raises FileNotFoundError if `paddlerec` is not a PaddleRec checkout or has no such folder.
    """
    source = paddlerec / "models" / folder
    for needed in (paddlerec / "tools" / "static_trainer.py", source):
        if not needed.exists():
            raise FileNotFoundError(
                f"{needed} does not exist: PADDLEREC must name the root of a PaddleRec checkout "
                f"that has tools/ and models/{folder}")
    shutil.copytree(paddlerec / "tools", into / "tools", ignore=SKIP, dirs_exist_ok=True)
    shutil.copytree(source, into / "models" / folder, ignore=SKIP, dirs_exist_ok=True)
    samples.prepare(folder, into)
    return into / "models" / folder


def environment(root: Path, *paths: Path) -> Dict[str, str]:
    """The environment of a run in the copy `root`; `paths` go before PYTHONPATH.

    Sets of words have the same order in every run.
    """
    result = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", PYTHONHASHSEED="0")
    parts = [str(root / "stubs"), *map(str, paths), result.get("PYTHONPATH", "")]
    result["PYTHONPATH"] = os.pathsep.join(part for part in parts if part)
    return result
