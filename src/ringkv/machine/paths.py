"""The directory of downloads and builds."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return `$RINGKV_CACHE`, else `$XDG_CACHE_HOME/ringkv`, else `~/.cache/ringkv`."""
    if own := os.environ.get("RINGKV_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "ringkv"
