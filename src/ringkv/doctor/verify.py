"""verify: compares the digests of cached files with those that are known: of sealed folders, and of the catalogue.

A checkpoint that ringkv has neither downloaded nor converted has no known digest, so nothing is said about it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ringkv.base.progress import Progress, silent
from ringkv.doctor.report import size_of
from ringkv.machine.seal import SEAL, broken, digest
from ringkv.residency.catalogue import catalogue
from ringkv.residency.pull import pulled_path

SEALED = ("converted", "graphs", "kernels")  # folders of sealed folders
UNFINISHED = ".partial"  # suffix of a folder that another process writes


@dataclass(frozen=True)
class Verified:
    """One cached file or folder. fault: which file is not as it was written, and how; None if all are."""

    path: Path
    bytes: int
    fault: str | None
    remedy: str | None = None


def verify(cache: Path, progress: Progress = silent) -> tuple[Verified, ...]:
    """Compute the digests of everything in the cache that has known ones. Reads all of its bytes."""
    items = list(_with_digests(cache))
    total, done, verified = sum(size_of(path) for path, _ in items), 0, []
    for path, sha256 in items:
        progress(done, total, f"verifying {path.parent.name}")
        fault = broken(path) if sha256 is None else _fault(path, sha256)
        remedy = fault and f"delete {path}; ringkv makes or fetches it again"
        verified.append(Verified(path, size_of(path), fault, remedy))
        done += size_of(path)
    return tuple(verified)


def _with_digests(cache: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield the catalogue's models that are here, with their digests, and the sealed folders, which have their own."""
    for model in catalogue().values():
        path = pulled_path(model)
        if path.is_file() and path.is_relative_to(cache):
            yield path, model.sha256
    for name in SEALED:
        for seal in sorted((cache / name).glob(f"*/{SEAL}")):
            if seal.parent.suffix != UNFINISHED:
                yield seal.parent, None


def _fault(path: Path, sha256: str) -> str | None:
    return None if digest(path) == sha256 else f"{path.name} has changed bytes (its sha256 is not the catalogue's)"
