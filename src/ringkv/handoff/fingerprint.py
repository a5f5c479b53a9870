"""fingerprint: a hash that two workers share if a prefix of one is valid in a slot of the other."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from ringkv.base.config import EngineConfig
from ringkv.base.version import VERSION
from ringkv.models.config import load_config

PIECES, PIECE = 16, 4096  # of each file of weights: how many pieces are hashed, and their bytes


def fingerprint(config: EngineConfig) -> str:
    """Return a hash of the version, the model, its weights and what decides a slot's contents.

    Of the weights it has a few pieces of each file, so it takes no time and differs for models of the same shapes.
    """
    kept = config.kv, config.capacity, config.dtype, config.weights, config.activations, config.slot_format
    found = hashlib.sha256(f"{VERSION}{kept}{load_config(config.model_dir)}".encode())
    for path in sorted(config.model_dir.glob("*.safetensors")):
        for piece in _pieces(path):
            found.update(piece)
    return found.hexdigest()


def _pieces(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield str(size).encode()
    with path.open("rb") as file:
        for at in range(PIECES):
            file.seek(max(0, size - PIECE) * at // (PIECES - 1))
            yield file.read(PIECE)
