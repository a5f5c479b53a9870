"""seal: sizes and sha256 digests of generated files, stored beside them, so that a change on disk is noticed.

seal.json    {"graph.so": {"bytes": 81232, "sha256": "..."}}
"""

import hashlib
import json
from pathlib import Path

SEAL = "seal.json"


def seal(folder: Path) -> None:
    """Write the sizes and digests of a folder's files. Call it before the folder gets its final name."""
    files = {path.name: _measure(path) for path in sorted(folder.iterdir()) if path.is_file() and path.name != SEAL}
    (folder / SEAL).write_text(json.dumps(files, indent=1) + "\n", encoding="ascii")


def broken(folder: Path) -> str | None:
    """Return which file is not as it was sealed, and how; None if all are. Reads every file that has the right size."""
    try:
        files = json.loads((folder / SEAL).read_bytes())
        return next((fault for name, want in files.items() if (fault := _fault(folder / name, want))), None)
    except (OSError, ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        return f"{SEAL} cannot be read ({error})"


def _fault(path: Path, want: dict[str, str | int]) -> str | None:
    if not path.is_file():
        return f"{path.name} is missing"
    if (size := path.stat().st_size) != want["bytes"]:
        return f"{path.name} has {size:,} bytes instead of {want['bytes']:,}"
    return None if digest(path) == want["sha256"] else f"{path.name} has changed bytes (its sha256 differs)"


def _measure(path: Path) -> dict[str, str | int]:
    return {"bytes": path.stat().st_size, "sha256": digest(path)}


def digest(path: Path) -> str:
    """Return a file's sha256. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
