"""Small files of a model directory: read with a clear error, written atomically."""

import json
from pathlib import Path
from typing import Any

from ringkv.base.errors import BadWeights
from ringkv.base.json_file import read_object
from ringkv.machine.folders import replacing


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`, empty if there is no such file. Raises BadWeights for anything else."""
    return read_object(path) if path.is_file() else {}


def read_text(path: Path, largest: int) -> str:
    """Return the text in `path`. Raises BadWeights for more than `largest` bytes and for broken UTF-8."""
    check_size(path, largest)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadWeights(f"{path} is not valid UTF-8 ({error}); download it again") from error


def check_size(path: Path, largest: int) -> None:
    """Raise BadWeights if the file has more than `largest` bytes."""
    if (size := path.stat().st_size) > largest:
        raise BadWeights(f"{path} has {size:,} bytes; ringkv reads up to {largest:,}, so download it again")


def write_atomically(path: Path, text: str) -> None:
    """Write `path` by renaming, so that it is never incomplete."""
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")


def write_json(path: Path, value: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")
