"""Small files of a model directory: read with a clear error, written atomically."""

import json
import os
from pathlib import Path
from typing import Any

from ringkv.base.errors import BadWeights


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`, empty if there is no such file. Raises BadWeights for anything else."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # broken JSON and broken UTF-8 alike
        raise BadWeights(f"{path} is not valid JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise BadWeights(f"{path} holds a JSON {type(value).__name__} instead of an object; download it again")
    return value


def write_atomically(path: Path, text: str) -> None:
    """Write `path` by renaming, so that it is never incomplete."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_json(path: Path, value: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")
