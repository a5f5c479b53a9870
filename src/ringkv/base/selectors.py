"""Selectors: the methods that score prompt tokens, each with its own parameters and no others. No torch.

`cache/compress` computes a selector's votes, in a file of its name. A new selector is a dataclass here, its class in
`SELECTORS`, a line in `plan/kv_settings.py` for each parameter that no other selector has, and its file of votes.

Votes are finite real numbers, also negative ones. The tokens with the highest votes are kept; of equal votes the
earlier token.

A selector outside the package is a `Selector` with a name and a method `votes(prompt, low, high)`. An `LLM` takes it in
a `KVChoice`. The method gets a `cache.compress.staged_prompt.StagedPrompt` of L layers and H key-value heads, and
returns a float tensor [L, H, high - low]: the votes of the tokens low .. high-1, on the device of the prompt's keys.
"""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args

from ringkv.base.checks import check, number, one_of

Pooling = Literal["avg", "max"]
WINDOW = 32  # tokens


class Selector:
    """Base of all selectors. Those of the package are frozen dataclasses; others are hashable.

    name: its name in options and messages.
    window: trailing prompt tokens that the policy snapkv always keeps. An engine stores as many queries if this is its
    default selector. Only selectors that use several queries have it as a parameter.
    prefills_twice: the whole prompt is prefilled a second time, after itself.
    joins_heads: all heads of a layer select the same tokens, so that they must have had the same until then.
    """

    name: str
    window: int = WINDOW
    prefills_twice: ClassVar[bool] = False
    joins_heads: ClassVar[bool] = False

    @property
    def queries(self) -> int:
        """How many trailing queries of a prompt it uses."""
        return self.window if "window" in parameters(self) else 0


def _named(name: str) -> Any:
    # A field of the instance: messages carry fields, and the receiver needs the name.
    return field(init=False, repr=False, default_factory=lambda: name)


@dataclass(frozen=True)
class SnapKV(Selector):
    """The attention of the last queries (arXiv 2404.14469).

    window: W, trailing prompt queries that vote.
    kernel, pooling: votes are pooled over this many neighbouring tokens, an odd number, by "max" or "avg". 5 and "avg"
    are common; our defaults keep whole passages (docs/accuracy.md measures it).
    """

    window: int = WINDOW
    kernel: int = 31
    pooling: Pooling = "max"
    name: Literal["snapkv"] = _named("snapkv")

    def __post_init__(self) -> None:
        check(
            (
                number("kv_window", self.window, 1),
                number("kv_kernel", self.kernel, 1),
                ("kv_kernel", self.kernel, self.kernel % 2 == 1, "odd, so that each token is in the middle"),
                one_of("kv_pooling", self.pooling, get_args(Pooling)),
            )
        )


@dataclass(frozen=True)
class TOVA(Selector):
    """The attention of the last query, one selection for all heads of a layer (arXiv 2401.06104)."""

    name: Literal["tova"] = _named("tova")
    joins_heads: ClassVar[bool] = True

    @property
    def queries(self) -> int:
        return 1


@dataclass(frozen=True)
class KeyDiff(Selector):
    """How much a key differs from the other keys (arXiv 2504.15364)."""

    name: Literal["keydiff"] = _named("keydiff")


@dataclass(frozen=True)
class KVzip(Selector):
    """The attention while the prompt is prefilled a second time, after itself (arXiv 2505.23416)."""

    name: Literal["kvzip"] = _named("kvzip")
    prefills_twice: ClassVar[bool] = True


SELECTORS: dict[str, type[Selector]] = {selector().name: selector for selector in (SnapKV, TOVA, KeyDiff, KVzip)}


def is_built_in(selector: object) -> bool:
    """Whether it is a selector of this package, which messages can carry."""
    return type(selector) in SELECTORS.values()


def is_selector(value: object) -> bool:
    """Whether it is a selector of this package, or one from outside with a name and a method `votes`."""
    has_votes = isinstance(value, Selector) and hasattr(value, "name") and callable(getattr(value, "votes", None))
    is_outside = has_votes and not isinstance(value, type) and type(value).__hash__ is not None
    return is_built_in(value) or is_outside


def parameters(selector: Selector) -> dict[str, Any]:
    """Return a selector's own parameters and their values."""
    if not hasattr(selector, "__dataclass_fields__"):
        return {}  # from outside, and no dataclass
    own = (field for field in fields(selector) if field.init)  # type: ignore[arg-type]
    return {field.name: getattr(selector, field.name) for field in own}
