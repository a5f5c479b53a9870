"""cannot: CANNOT, the features that no engine has together, and why. All refusals of combinations come from it.

A feature is what a setting or a model asks for. Numbers that do not fit are refused where they are read.
"""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from ringkv.base.errors import InvalidRequest

Feature = str  # a key of `INSTEAD`
Wanted = Mapping[Feature, str]
"""Features, each with what asked for it: a setting's name and value, such as "kv_format int8", or a model's caches."""
INSTEAD: Mapping[Feature, str] = {
    "draft model": "speculate N",
    "drafts": "speculate 0",
    "continue": "kv_turns reread",
    "ragged heads": "kv_heads equal",
    "zipcache": "kv_format int4",
    "int8": "kv_format plain",
    "int4": "kv_format plain",
    "selector joins heads": "kv_select snapkv",
    "selector prefills twice": "kv_select snapkv",
    "tier on disk": "kv_tier memory",
    "tier in host memory": "no kv_tier",
    "pages": "kv_policy snapstream",
    "reviews": "kv_policy snapstream",
    "every token": "kv_policy snapstream",
    "workspace": "no prefill_workspace",
    "handoff": "--role both",
    "ranks": "tensor_parallel 1",
    "cuda": "device cpu",
    "latents": "another model",
    "shared caches": "another model",
    "only windows": "another model",
    "some windows": "another model",
}
"""What to choose to be without a feature. A refusal names the earliest of its features as the setting at fault."""


class Cannot(NamedTuple):
    """is_missing: it could be implemented, and is not; else it is impossible. reason: a clause that says why."""

    is_missing: bool
    reason: str

    @property
    def kind(self) -> str:
        return "missing" if self.is_missing else "impossible"

    @property
    def verb(self) -> str:
        return "is not implemented with" if self.is_missing else "is not possible with"


def _cannot(is_missing: bool, *features: Feature, because: str) -> tuple[frozenset[Feature], Cannot]:
    assert INSTEAD.keys() >= set(features), "a feature is a key of INSTEAD"
    return frozenset(features), Cannot(is_missing, because)


_missing, _impossible = partial(_cannot, True), partial(_cannot, False)
CANNOT: Mapping[frozenset[Feature], Cannot] = dict(
    (
        _missing("drafts", "zipcache", because="a chunk cannot give tokens back"),
        _missing("drafts", "tier in host memory", because="a place on the GPU cannot give its page back"),
        _missing("drafts", "shared caches", because="layers that share a cache cannot give tokens back"),
        _missing("draft model", "ranks", because="the ranks would have to agree on what it guesses"),
        _missing("draft model", "handoff", because="a request that moves has no text for the draft model"),
        _missing("continue", "zipcache", because="its chunks would be encoded again"),
        _missing("continue", "reviews", because="what reviews have noted is not stored"),
        _missing("continue", "workspace", because="an earlier turn's entries are not compacted"),
        _missing("continue", "some windows", because="global layers and those with a window hold different tokens"),
        _impossible(
            "continue", "ragged heads", "selector joins heads", because="the selector needs the same in all heads"
        ),
        _missing("continue", "ragged heads", "int8", because="ragged heads do not keep the bytes of earlier entries"),
        _missing("continue", "ragged heads", "int4", because="ragged heads do not keep the bytes of earlier entries"),
        _missing("ragged heads", "zipcache", because="a chunk has as many tokens of each head"),
        _missing("ragged heads", "pages", because="heads of a slot in pages have as many entries"),
        _missing("ragged heads", "reviews", because="a review evicts as many entries of each head"),
        _missing("ranks", "ragged heads", because="the heads of one rank would divide its own entries alone"),
        _impossible("ragged heads", "latents", because="all heads share a latent"),
        _impossible("ragged heads", "only windows", because="a window selects nothing"),
        _missing("zipcache", "pages", because="a page is not a chunk"),
        _missing("zipcache", "reviews", because="an entry of a chunk is not evicted alone"),
        _missing("zipcache", "latents", because="a chunk has keys and values"),
        _missing("zipcache", "shared caches", because="one layer alone may append to a chunk"),
        _missing("zipcache", "only windows", because="whole chunks are evicted, later than a window requires"),
        _missing("zipcache", "some windows", because="whole chunks are evicted, later than a window requires"),
        _missing("int8", "tier in host memory", because="places on the GPU hold plain pages"),
        _missing("int4", "tier in host memory", because="places on the GPU hold plain pages"),
        _missing("int8", "pages", "cuda", because="the GPU's kernel completes plain pages"),
        _missing("int4", "pages", "cuda", because="the GPU's kernel completes plain pages"),
        _missing("tier on disk", "cuda", because="a GPU does not read files"),
        _missing("pages", "latents", because="a page's digest is of the keys of one head"),
        _impossible("pages", "only windows", because="a step reads the whole window"),
        _missing("reviews", "latents", because="queries are not kept for latents"),
        _impossible("reviews", "only windows", because="a window selects nothing"),
        _impossible("every token", "workspace", because="a longer prompt is compressed while it is prefilled"),
        _missing("selector prefills twice", "workspace", because="the whole prompt is not prefilled again"),
        _impossible("selector joins heads", "workspace", because="heads keep different tokens of a longer prompt"),
    )
)
"""Features -> why they do not go together. Two in nearly all cases; of three, each two may be had."""


def refuse(wanted: Wanted) -> None:
    """Raise InvalidRequest, naming the first setting, if some of the features do not go together."""
    for features, cannot in CANNOT.items():
        if features <= wanted.keys():
            first, *others = (feature for feature in INSTEAD if feature in features)
            settings = " and ".join(wanted[feature] for feature in others)
            choices = dict.fromkeys(INSTEAD[feature] for feature in (first, *others))
            raise InvalidRequest(
                f"{wanted[first]} {cannot.verb} {settings}: {cannot.reason}; choose {', or '.join(choices)}",
                wanted[first].partition(" ")[0],
            )
