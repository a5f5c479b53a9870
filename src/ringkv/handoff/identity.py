"""Identity: what a worker runs. A prefix is valid in another worker's slot if both run the same."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from ringkv.base.cannot import refuse
from ringkv.base.config import EngineConfig
from ringkv.base.selectors import parameters
from ringkv.base.version import VERSION
from ringkv.base.wanted import DRAFT_MODEL, HANDOFF, of_slots
from ringkv.models.config import load_config
from ringkv.wire.handshake import Hello

PIECES, PIECE = 16, 4096  # of each file of weights: how many pieces are hashed, and their bytes
SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True)
class Identity:
    """fingerprint: decides whether two are the same. settings: what it is made of, by name, to name a difference."""

    fingerprint: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: EngineConfig) -> "Identity":
        """Raise InvalidRequest if slots in the configuration's format cannot leave for another process."""
        drafter = {"draft model": DRAFT_MODEL} if config.drafter else {}
        refuse({**of_slots(config.slot_format), **HANDOFF, **drafter})
        return cls(fingerprint(config), settings(config))

    def refusal(self, decode: "Identity | Hello") -> str:
        """Return why a prefill worker with this identity refuses a decode worker; "" if it does not."""
        if decode.fingerprint == self.fingerprint:
            return ""
        for name, value in self.settings.items():
            other = decode.settings.get(name, "unknown")
            if other != value:
                return (
                    f"{name} is {other:.{SHOWN}} at the decode worker and {value:.{SHOWN}} at the prefill worker; "
                    "start both alike"
                )
        return "their files of weights differ; start both with the same model"


def fingerprint(config: EngineConfig) -> str:
    """Return a hash of `settings` and the weights.

    Of the weights it has a few pieces of each file, so it takes no time and differs for models of the same shapes.
    """
    digest = hashlib.sha256(f"{settings(config)}".encode())
    for path in sorted(config.model_dir.glob("*.safetensors")):
        for piece in _pieces(path):
            digest.update(piece)
    return digest.hexdigest()


def settings(config: EngineConfig) -> dict[str, str]:
    """Return what decides a slot's contents beside the weights, by the names of options."""
    kv = {f"kv_{option.name}": getattr(config.kv, option.name) for option in fields(config.kv)}
    selector, (size, kept) = kv.pop("kv_select"), config.workspace
    values = {
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
        "kv_page": config.page,
        "prefill_workspace": f"{size:,}, and {kept:,} after a compaction" if config.prefill_workspace else "none",
        "capacity": config.capacity,
    }
    return {name: str(value) for name, value in values.items()}


def _pieces(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield str(size).encode()
    with path.open("rb") as file:
        for index in range(PIECES):
            file.seek(max(0, size - PIECE) * index // (PIECES - 1))
            yield file.read(PIECE)
