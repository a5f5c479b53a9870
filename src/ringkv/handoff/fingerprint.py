"""fingerprint: a hash that two workers share if a prefix of one is valid in a slot of the other."""

import hashlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from ringkv.base.config import EngineConfig
from ringkv.base.selectors import parameters
from ringkv.base.version import VERSION
from ringkv.models.config import load_config

PIECES, PIECE = 16, 4096  # of each file of weights: how many pieces are hashed, and their bytes


def fingerprint(config: EngineConfig) -> str:
    """Return a hash of `settings` and the weights.

    Of the weights it has a few pieces of each file, so it takes no time and differs for models of the same shapes.
    """
    found = hashlib.sha256(f"{settings(config)}".encode())
    for path in sorted(config.model_dir.glob("*.safetensors")):
        for piece in _pieces(path):
            found.update(piece)
    return found.hexdigest()


def settings(config: EngineConfig) -> dict[str, str]:
    """Return what decides a slot's contents beside the weights, by the names of options."""
    kv = {f"kv_{one.name}": getattr(config.kv, one.name) for one in fields(config.kv)}
    selector = kv.pop("kv_select")
    found = {
        "version": VERSION,
        "model": f"config {hashlib.sha256(str(load_config(config.model_dir)).encode()).hexdigest()[:12]}",
        "dtype": config.dtype,
        "weights": config.weights,
        "activations": config.activations,
        "kv_format": config.slot_format.encoding,
        "kv_format_skip": config.slot_format.skip,
        **kv,
        "kv_select": selector.name,
        **{f"kv_{name}": value for name, value in parameters(selector).items()},
        "capacity": config.capacity,
    }
    return {name: str(value) for name, value in found.items()}


def _pieces(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield str(size).encode()
    with path.open("rb") as file:
        for at in range(PIECES):
            file.seek(max(0, size - PIECE) * at // (PIECES - 1))
            yield file.read(PIECE)
