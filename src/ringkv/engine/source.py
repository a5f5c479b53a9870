"""The digest of our source. It is part of a graph's key on disk, so that another version's graphs are not loaded."""

import hashlib
from functools import cache
from pathlib import Path

ROOMS = ("cache", "engine", "graphs", "kernels", "models")


@cache
def digest() -> str:
    """Return the digest of every Python file that a graph can depend on."""
    root = Path(__file__).parent.parent
    files = sorted(path for room in ROOMS for path in (root / room).rglob("*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
