"""Request: one prompt, with everything that decides its output tokens."""

from dataclasses import dataclass, field
from functools import partial
from secrets import randbits

from ringkv.base.kv import KVChoice
from ringkv.base.sampling import SamplingParams


@dataclass(frozen=True)
class Request:
    """One prompt, its sampling parameters and its cache choice. `kv` None takes the engine's default.

    `eos`: the model's end-of-sequence ids. Stop *strings* are matched in the text, not here.
    `forced`: the first output tokens, taken instead of sampling: a text to be scored, or a question that follows the
    compressed prompt. They count as output, and none of them ends the request.
    `own_seed`: a random seed, made with the request, for sampling without a seed. So a request that is served again,
    even by another engine, gives the same tokens. It is ignored when requests are compared.
    `salt`: a prompt reuses cached tokens only from prompts with the same salt. Clients that must not share cached
    tokens have different salts.
    `owner`: who sent it, the label of an API key or "". The scheduler divides the slots between owners.
    `priority`: requests with a lower number start sooner.
    `trace`: remember which prompt tokens it keeps, for who asks later.
    `timeout`: seconds from its submission to an engine after which it ends, whatever it has by then; None never.
    """

    id: str
    tokens: tuple[int, ...]
    sampling: SamplingParams
    kv: KVChoice | None = None
    eos: tuple[int, ...] = ()
    forced: tuple[int, ...] = ()
    salt: str = ""
    owner: str = ""
    priority: int = 0
    timeout: float | None = None
    trace: bool = False
    own_seed: int = field(default_factory=partial(randbits, 63), compare=False)

    @property
    def seed(self) -> int:
        """Seed of the random numbers: `sampling.seed`, else `own_seed`."""
        return self.own_seed if self.sampling.seed is None else self.sampling.seed

    def ends_at(self, token: int, count: int) -> bool:
        """Whether output token number `count`, from 1, is a stop id that ends the request. A stop id has no text."""
        sampling = self.sampling
        stops = token in sampling.stop_token_ids or (token in self.eos and not sampling.ignore_eos)
        return stops and count > max(sampling.min_tokens, len(self.forced))
