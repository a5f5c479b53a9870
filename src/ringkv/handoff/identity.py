"""Identity: what a worker runs. A prefix is valid in another worker's slot if both run the same."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256

from ringkv.base.config import EngineConfig
from ringkv.base.selectors import parameters
from ringkv.base.version import VERSION
from ringkv.handoff.fingerprint import fingerprint
from ringkv.models.config import load_config

SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True)
class Identity:
    """fingerprint: decides whether two are the same. settings: what it is made of, by name, to name a difference."""

    fingerprint: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: EngineConfig) -> "Identity":
        return cls(fingerprint(config), {name: str(value) for name, value in _settings(config).items()})

    def refusal(self, decode: "Identity") -> str:
        """Return why a prefill worker with this identity refuses a decode worker; "" if it does not."""
        if decode.fingerprint == self.fingerprint:
            return ""
        for name, value in self.settings.items():
            other = decode.settings.get(name, "unknown")
            if other != value:
                there, here = (f"{one:.{SHOWN}}" for one in (other, value))
                return f"{name} is {there} at the decode worker and {here} at the prefill worker; start both alike"
        return "their files of weights differ; start both with the same model"


def _settings(config: EngineConfig) -> dict[str, object]:
    """Return the settings of a fingerprint by their names as options."""
    kv = {f"kv_{one.name}": getattr(config.kv, one.name) for one in fields(config.kv)}
    selector = kv.pop("kv_select")
    return {
        "version": VERSION,
        "model": f"config {sha256(str(load_config(config.model_dir)).encode()).hexdigest()[:12]}",
        "dtype": config.dtype,
        "weights": config.weights,
        "kv_format": config.kv_format,
        "kv_format_skip": config.kv_format_skip,
        **kv,
        "kv_select": selector.name,
        **{f"kv_{name}": value for name, value in parameters(selector).items()},
        "capacity": config.capacity,
    }
