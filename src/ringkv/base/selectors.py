"""Selectors: how the selected tokens of a prompt are chosen, each with its own parameters and no others. No torch.

A selector's votes are in `cache/compress`, in a file of its name. A new one is a dataclass here, its class in
`SELECTORS`, a line in `plan/kv_settings.py` for each parameter that no other selector has, and its file of votes.
"""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args

from ringkv.base.checks import check, number, one_of

Pooling = Literal["avg", "max"]
Groups = Literal["mean", "max"]
Domain = Literal["row", "candidates"]
WINDOW = 32  # tokens


class Selector:
    """Base of all selectors, which are frozen dataclasses.

    name: what users and messages call it.
    window: trailing prompt tokens that the policy snapkv keeps whole, and queries that an engine keeps whose default
    this selector is. A parameter of selectors that look at several queries.
    prefills_twice: the whole prompt is prefilled a second time, after itself.
    """

    name: str
    window: int = WINDOW
    prefills_twice: ClassVar[bool] = False

    @property
    def queries(self) -> int:
        """How many trailing queries of a prompt it looks at."""
        return 0


def _named(name: str) -> Any:
    # Made with the instance: messages carry what an instance holds, and the receiver needs the name.
    return field(init=False, repr=False, default_factory=lambda: name)


@dataclass(frozen=True)
class SnapKV(Selector):
    """The attention of the last queries (arXiv 2404.14469).

    window: W, trailing prompt queries that vote.
    kernel, pooling: votes are pooled over this many neighbouring tokens, an odd number, by "max" or "avg". 5 and "avg"
    are common; our defaults keep whole passages (docs/accuracy.md measures it).
    groups: "mean" of the votes of the query heads that share a key-value head, or each token's "max".
    domain: softmax over the whole causal "row" (SnapKV) or over the "candidates" only (SnapStream's Eq. 3).
    """

    window: int = WINDOW
    kernel: int = 31
    pooling: Pooling = "max"
    groups: Groups = "mean"
    domain: Domain = "row"
    name: Literal["snapkv"] = _named("snapkv")

    def __post_init__(self) -> None:
        check(
            (
                number("kv_window", self.window, 1),
                number("kv_kernel", self.kernel, 1),
                ("kv_kernel", self.kernel, self.kernel % 2 == 1, "odd, so that each token is in the middle"),
                one_of("kv_pooling", self.pooling, get_args(Pooling)),
                one_of("kv_groups", self.groups, get_args(Groups)),
                one_of("kv_domain", self.domain, get_args(Domain)),
            )
        )

    @property
    def queries(self) -> int:
        return self.window


@dataclass(frozen=True)
class TOVA(Selector):
    """The attention of the very last query, one choice for all heads of a layer (arXiv 2401.06104)."""

    name: Literal["tova"] = _named("tova")

    @property
    def queries(self) -> int:
        return 1


@dataclass(frozen=True)
class KeyDiff(Selector):
    """How unlike the others a key is (arXiv 2504.15364)."""

    name: Literal["keydiff"] = _named("keydiff")


@dataclass(frozen=True)
class ExpectedAttention(Selector):
    """The attention that coming queries are expected to give (arXiv 2510.00636).

    window: W, trailing prompt queries that coming ones are taken to be like.
    """

    window: int = WINDOW
    name: Literal["expected"] = _named("expected")

    def __post_init__(self) -> None:
        check([number("kv_window", self.window, 1)])

    @property
    def queries(self) -> int:
        return self.window


@dataclass(frozen=True)
class KVzip(Selector):
    """The attention while the prompt is read a second time, after itself (arXiv 2505.23416)."""

    name: Literal["kvzip"] = _named("kvzip")
    prefills_twice: ClassVar[bool] = True


SELECTORS: dict[str, type[Selector]] = {kind().name: kind for kind in (SnapKV, TOVA, KeyDiff, ExpectedAttention, KVzip)}


def parameters(selector: Selector) -> dict[str, Any]:
    """A selector's own parameters and their values."""
    return {one.name: getattr(selector, one.name) for one in fields(selector) if one.init}  # type: ignore[arg-type]
