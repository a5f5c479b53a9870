"""safetensors_header: names, types and places of a safetensors file's tensors. No torch."""

import json
from pathlib import Path
from typing import Any

LONGEST_HEADER = 100 << 20  # as safetensors has it


def header(path: Path) -> dict[str, Any]:
    """Return the entry of each tensor; nothing if the file is corrupt, which loading it reports.

    `data_offsets` of an entry are bytes from the start of the file.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            read = json.loads(file.read(length)) if length <= LONGEST_HEADER else {}
            return {name: _placed(entry, 8 + length) for name, entry in read.items() if name != "__metadata__"}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return {}


def _placed(entry: dict[str, Any], start: int) -> dict[str, Any]:
    first, last = entry["data_offsets"]
    return {**entry, "data_offsets": (start + first, start + last)}
