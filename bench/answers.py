"""answers: the journals of the studies of accuracy, compressed in bench/results/accuracy as NAME.jsonl.xz."""

import lzma
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.results import RESULTS
from ringkv.evaluation import journal
from ringkv.evaluation.journal import Record

FOLDER = RESULTS / "accuracy"


def records(name: str, folder: Path = FOLDER) -> list[Record]:
    """All answers of a study; none if it has not begun."""
    with TemporaryDirectory() as there:
        path = unpack(name, Path(there), folder)
        return list(journal.read(path)) if path.is_file() else []


def about(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """What all answers of a study have in common, and its `sessions`."""
    with TemporaryDirectory() as there:
        return journal.about(unpack(name, Path(there), folder))


def unpack(name: str, to: Path, folder: Path = FOLDER) -> Path:
    """Write the journal into `to` and return its path.

    A longer journal that is there already, of a run that ended before it was packed, stays.
    """
    path, packed = to / journal.NAME, folder / f"{name}.jsonl.xz"
    if packed.is_file():
        known = lzma.decompress(packed.read_bytes())
        if not (path.is_file() and path.read_bytes().startswith(known)):
            to.mkdir(parents=True, exist_ok=True)
            path.write_bytes(known)
    return path


def pack(name: str, at: Path, folder: Path = FOLDER) -> None:
    """Compress the journal in `at`, if there is one and it has grown, into the folder of results."""
    packed = folder / f"{name}.jsonl.xz"
    text = (at / journal.NAME).read_bytes() if (at / journal.NAME).is_file() else b""
    if text != (lzma.decompress(packed.read_bytes()) if packed.is_file() else b""):
        folder.mkdir(parents=True, exist_ok=True)
        packed.write_bytes(lzma.compress(text, preset=lzma.PRESET_EXTREME))
