"""Identity: what a worker runs. A prefix is valid in another worker's slot if both run the same."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ringkv.base.cannot import refuse
from ringkv.base.config import EngineConfig
from ringkv.base.wanted import HANDOFF, of_slots
from ringkv.handoff.fingerprint import fingerprint, settings
from ringkv.wire.handshake import Hello

SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True)
class Identity:
    """fingerprint: decides whether two are the same. settings: what it is made of, by name, to name a difference."""

    fingerprint: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: EngineConfig) -> "Identity":
        """Raise InvalidRequest if slots in the configuration's format cannot leave for another process."""
        refuse({**of_slots(config.slot_format), **HANDOFF})
        return cls(fingerprint(config), settings(config))

    def refusal(self, decode: "Identity | Hello") -> str:
        """Return why a prefill worker with this identity refuses a decode worker; "" if it does not."""
        if decode.fingerprint == self.fingerprint:
            return ""
        for name, value in self.settings.items():
            other = decode.settings.get(name, "unknown")
            if other != value:
                there, here = (f"{one:.{SHOWN}}" for one in (other, value))
                return f"{name} is {there} at the decode worker and {here} at the prefill worker; start both alike"
        return "their files of weights differ; start both with the same model"
