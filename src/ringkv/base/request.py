"""Request: one prompt on its way to tokens."""

from dataclasses import dataclass, field
from functools import partial
from secrets import randbits

from ringkv.base.kv import KVChoice
from ringkv.base.sampling import SamplingParams


@dataclass(frozen=True)
class Request:
    """One prompt, how to sample, and which cache to hold. `kv` None takes the engine's default.

    `eos` holds the model's end-of-sequence ids; stop *strings* are looked for where text is made, not here.
    `forced`: the first tokens of the output, given instead of drawn: a text to be scored, or a question that comes
    after the prompt was compressed. They count as output, and none of them ends the request.
    `own_seed`: a random seed, chosen when the request is made, for sampling that names none. So a request that is
    served again, by another engine too, gives the same tokens. Two requests that differ in nothing else are equal.
    `salt`: a prompt may begin with what another one left only where both have the same; clients that may not share have
    their own.
    """

    id: str
    tokens: tuple[int, ...]
    sampling: SamplingParams
    kv: KVChoice | None = None
    eos: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()
    salt: str = ""
    own_seed: int = field(default_factory=partial(randbits, 63), compare=False)

    @property
    def seed(self) -> int:
        """Of its random numbers: the one that `sampling` names, or its own."""
        return self.own_seed if self.sampling.seed is None else self.sampling.seed

    def ends_at(self, token: int, drawn: int) -> bool:
        """Whether `token`, the `drawn`-th counted from 1, is a stop id that ends the request; it stands for no text."""
        sampling = self.sampling
        stops = token in sampling.stop_token_ids or (token in self.eos and not sampling.ignore_eos)
        return stops and drawn > max(sampling.min_tokens, len(self.forced))
