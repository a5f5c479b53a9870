"""answers: the journals of the accuracy studies, compressed in bench/results/accuracy as NAME.jsonl.xz."""

import lzma
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.results import RESULTS
from ringkv.evaluation import journal
from ringkv.evaluation.journal import Record

FOLDER = RESULTS / "accuracy"


def names(folder: Path = FOLDER) -> list[str]:
    """Return the studies with answers, in the order of their names."""
    return sorted(path.name.removesuffix(".jsonl.xz") for path in folder.glob("*.jsonl.xz"))


def records(name: str, folder: Path = FOLDER) -> list[Record]:
    """Return all answers of a study; none if it has not begun."""
    with TemporaryDirectory() as temporary:
        path = unpack(name, Path(temporary), folder)
        return list(journal.read(path)) if path.is_file() else []


def about(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """Return what all answers of a study have in common, and its `sessions`."""
    with TemporaryDirectory() as temporary:
        return journal.about(unpack(name, Path(temporary), folder))


def unpack(name: str, to: Path, folder: Path = FOLDER) -> Path:
    """Write the journal into `to` and return its path.

    A longer journal already in `to`, left by a run that ended before it was packed, is not overwritten.
    """
    path, packed = to / journal.NAME, folder / f"{name}.jsonl.xz"
    if packed.is_file():
        text = lzma.decompress(packed.read_bytes())
        if not (path.is_file() and path.read_bytes().startswith(text)):
            to.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
    return path


def pack(name: str, source: Path, folder: Path = FOLDER) -> None:
    """Compress the journal in `source` into the folder of results, if it exists and has grown."""
    path, packed = source / journal.NAME, folder / f"{name}.jsonl.xz"
    text = path.read_bytes() if path.is_file() else b""
    if text != (lzma.decompress(packed.read_bytes()) if packed.is_file() else b""):
        folder.mkdir(parents=True, exist_ok=True)
        packed.write_bytes(lzma.compress(text, preset=lzma.PRESET_EXTREME))
