"""Messages between a decode worker and a prefill worker, as plain data.

After their handshake the decode worker sends Ask, Drop and Received. The prefill worker replies to each Ask with one of
Prefix, PromptFailed and PromptDropped, after any number of PromptScored. `number` is that of the Ask.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ringkv.base.events import TokenLogprob
from ringkv.base.failure import Failure
from ringkv.base.kv import Layouts
from ringkv.base.request import Request


@dataclass(frozen=True)
class Ask:
    """Prefill a prompt. A slot is reserved for its prefix."""

    number: int
    request: Request


@dataclass(frozen=True)
class Drop:
    """The prefix is no longer needed. One that was sent is received and discarded."""

    number: int


@dataclass(frozen=True)
class Received:
    """The prefix has arrived. Its slot at the prefill worker is free."""

    number: int


@dataclass(frozen=True)
class Prefix:
    """The header of a `base.engine.Packet` without its request. So many bytes of entries and logits follow it.

    seen, sampled: as in `Packet`. cached: prompt tokens that needed no prefill.
    """

    number: int
    fingerprint: str
    layouts: Layouts
    seen: int
    sampled: Mapping[int, int]
    entries: int
    logits: int
    cached: int = 0


@dataclass(frozen=True)
class PromptScored:
    """Log-probabilities of the next prompt tokens."""

    number: int
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True)
class PromptFailed:
    """The prompt cannot be prefilled."""

    number: int
    failure: Failure


@dataclass(frozen=True)
class PromptDropped:
    """A Drop came before the prefix was sent."""

    number: int


FromDecode = Ask | Drop | Received
FromPrefill = Prefix | PromptScored | PromptFailed | PromptDropped
