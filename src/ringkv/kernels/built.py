"""built: folders of compiled code. Each is made once, sealed, and loaded only if nobody else could have changed it."""

import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from ringkv.base.errors import BadCache
from ringkv.machine.folders import make_private, remove, strangers, unwritable
from ringkv.machine.lock import locked
from ringkv.machine.seal import broken, seal

Make = Callable[[Path], None]
"""Writes files into an empty folder, whose parent it may use as scratch space."""

log = logging.getLogger(__name__)


def built(folder: Path, make: Make, on_wait: Callable[[], None]) -> Path:
    """Return `folder`; `make` its files if it is missing, or if a file is not as it was sealed.

    One process makes it; the others call `on_wait` and wait. If it is whole, nothing is written.
    Raises BadCache if its parent is not ours alone, and if it has to be made and the disk is full or read-only.
    """
    if not is_whole(folder):
        if fault := make_private(folder.parent) or unwritable(folder.parent):
            raise BadCache(f"{folder.name} has to be compiled and cannot be stored: {fault}")
        with locked(folder.with_name(f"{folder.name}.lock"), on_wait):
            if not is_whole(folder):  # another process may have made it meanwhile
                _make(folder, make)
    return folder


def is_whole(folder: Path) -> bool:
    """Whether the folder is there, with each file as it was sealed. Raises BadCache if it is not ours alone."""
    if not folder.is_dir():
        return False
    if fault := strangers(folder.parent) or strangers(folder):
        raise BadCache(fault)
    if fault := broken(folder):
        log.warning("%s: %s; it is compiled again", folder, fault)
    return fault is None


def _make(folder: Path, make: Make) -> None:
    """Make it in a temporary folder and rename that: an interruption leaves nothing partial."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        new = Path(scratch) / "built"
        new.mkdir(mode=0o700)
        try:
            make(new)
            seal(new)
        except Exception as error:
            if fault := unwritable(folder.parent):  # compilers report a full disk in their own words
                raise BadCache(f"{folder.name} could not be compiled: {fault}") from error
            raise
        if fault := remove(folder):
            raise BadCache(f"{folder.name} has changed and is compiled again: {fault}")
        os.rename(new, folder)
