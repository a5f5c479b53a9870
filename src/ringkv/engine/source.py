"""The digest of our source, by which graphs of another version on disk are not taken for this one's."""

import hashlib
from functools import cache
from pathlib import Path

ROOMS = ("cache", "engine", "graphs", "kernels", "models")


@cache
def digest() -> str:
    """Over every Python file of ours that a graph's meaning can depend on."""
    root = Path(__file__).parent.parent
    files = sorted(path for room in ROOMS for path in (root / room).rglob("*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
