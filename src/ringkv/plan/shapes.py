"""Shape: the sizes that a model's memory depends on, from its config.json or from a catalogue of published ones."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

from ringkv.base.cache_spec import LayerGroup, SlotFormat, in_formats
from ringkv.base.errors import UnknownModel
from ringkv.models.config import ModelConfig, parse_config
from ringkv.models.weights import Weight

ENDINGS = re.compile(
    r"""[-.]gguf$
    | -\d{5}-of-\d{5}$
    | -qat$
    | [-._](?:(?:ud|i1)[-_])?(?:i?q\d\w*|tq\d\w*|mxfp4\w*|bf16|fp?16|fp?32)$""",
    re.VERBOSE,
)
"""Endings in lower case: of a file or repository of GGUFs, of a part, of training for a type, and of a tensor type."""

PUBLISHERS = re.compile("^(?:deepseek-ai|google|ibm-granite|meta-llama|microsoft|mistralai|openai|qwen|zai-org)_")
"""Organisations that some names of files begin with."""

NUMBERS = re.compile(r"\d+")
SIZE = re.compile(r"-e?\d+(?:\.\d+)?(?:x\d+)?b(?:-.*)?$")
"""The end of a name that tells models of a family apart: -8b, -e2b, -8x7b or -30b-a3b."""


@dataclass(frozen=True)
class ExpertShape:
    """Experts of a model. elements: of all of them, in all layers that have some."""

    count: int
    chosen: int
    hidden: int
    elements: int

    @classmethod
    def of(cls, weights: Iterable[Weight], hidden: int) -> "ExpertShape | None":
        """Return the shape of the experts among a model's weights; None if there are none."""
        experts = [weight for weight in weights if weight.chosen is not None]
        if not experts:
            return None
        return cls(experts[0].matrices, experts[0].chosen or 0, hidden, sum(weight.elements for weight in experts))


@dataclass(frozen=True)
class Shape:
    name: str
    groups: tuple[LayerGroup, ...]  # of layers with caches of their own
    kv_source: tuple[int, ...]  # for each layer the one whose cache it reads
    parameters: int
    active: int  # parameters that a decode step of one token reads, including the vocabulary projection
    vocabulary: int  # parameters of that projection, and of the embedding
    vocab: int  # tokens
    looked_up: int  # parameters of tables of which a token reads one row alone
    context: int  # longest prompt plus output
    native: str  # dtype of the published weights
    experts: ExpertShape | None  # None if the model has none
    int8: str = "int8"  # what `--weights int8` stores, as `stored_bits` names it

    @classmethod
    def of(cls, config: ModelConfig, name: str, native: str = "bfloat16") -> "Shape":
        """Return the shape of what `config.rank` has of a model.

        Tables of which a token reads one row alone are not counted as active.
        """
        vocabulary = len(config.vocab_spans[config.rank.index]) * config.hidden_size
        looked_up = 0 if config.tied_embeddings else vocabulary
        if per_layer := config.per_layer_inputs:
            looked_up += per_layer.vocab * per_layer.elements
        weights = tuple(_weights(config))
        return cls(
            name=name,
            groups=config.groups,
            kv_source=config.kv_source,
            parameters=sum(weight.elements for weight in weights),
            active=sum(weight.active for weight in weights) - looked_up,
            vocabulary=vocabulary,
            vocab=config.vocab_size,
            looked_up=looked_up,
            context=config.context,
            native=native,
            experts=ExpertShape.of(weights, config.hidden_size),
        )

    @property
    def num_layers(self) -> int:
        return len(self.kv_source)

    @property
    def shares_caches(self) -> bool:
        """Whether some layer reads an earlier layer's cache."""
        return self.kv_source != tuple(range(self.num_layers))

    @property
    def has_latents(self) -> bool:
        """Whether all layers have latent attention, so that ranks can divide the slots."""
        return all(group.spec.value is None for group in self.groups)

    def with_slots(self, slots: SlotFormat) -> "Shape":
        """Return the shape with slots in a format."""
        return replace(self, groups=in_formats(self.groups, slots, self.num_layers))


def _weights(config: ModelConfig) -> Iterator[Weight]:
    every = (config.shared_weights(), *(config.layer_weights(layer) for layer in range(config.num_layers)))
    return (weight.of_rank(config.rank) for weights in every for weight in weights.values())


def plain_name(name: str) -> str:
    """Return a name in lower case without organisation, folder, `.gguf`, part number and tensor type.

    `Qwen/Qwen3-8B`, `Qwen3-8B-GGUF` and `models/Qwen3-8B-Q4_K_M.gguf` are `qwen3-8b`.
    """
    plain = name.lower().rpartition("/")[2]
    plain = PUBLISHERS.sub("", plain)
    while (shorter := ENDINGS.sub("", plain)) != plain:
        plain = shorter
    return plain


def names() -> tuple[str, ...]:
    return tuple(configurations())


def known(name: str) -> Shape:
    """Return a shape of the catalogue by its name, a hub id or the name of a GGUF file.

    Raises `UnknownModel` with the name that was probably meant, the sizes of its family, or all families.
    """
    if (entry := entry_of(name)) is None:
        raise UnknownModel(f"no model is known as {name!r}; {_instead(plain_name(name))}")
    fields = dict(configurations()[entry])
    native = fields.pop("native", "bfloat16")
    del fields["hub"]
    return Shape.of(parse_config(fields), entry, native)


def _instead(name: str) -> str:
    """Return what to give instead of a plain name. Another number is another model, and no slip of the pen."""
    near = get_close_matches(name, names(), n=len(names()))
    if meant := next((each for each in near if NUMBERS.findall(each) == NUMBERS.findall(name)), None):
        return f"did you mean {meant}? Otherwise give a directory with config.json, or a GGUF file"
    sizes: dict[str, list[str]] = {}
    for each in names():
        sizes.setdefault(SIZE.sub("", each), []).append(each)
    family = SIZE.sub("", name)
    if family in sizes:
        return f"of {family} there are {', '.join(sizes[family])}; of others give a directory with config.json"
    of_family = f"{family} is not supported, or its sizes are not known; " if family else ""
    known = ", ".join(f"{each} ({len(sizes[each])})" if len(sizes[each]) > 1 else sizes[each][0] for each in sizes)
    return f"{of_family}give a directory with config.json, a GGUF file, or a model of these families: {known}"


def entry_of(name: str) -> str | None:
    """Return the catalogue's name of a model that is called by any of its names; None if it is not there."""
    return _entries().get(plain_name(name))


def hub_id(name: str) -> str | None:
    """Return the hub id of a model of the catalogue, called by any of its names; None if it is not there."""
    entry = entry_of(name)
    return None if entry is None else configurations()[entry]["hub"][0]


@cache
def _entries() -> Mapping[str, str]:
    """Return the catalogue's name for each plain name of a model."""
    called = {name: (name, *fields["hub"]) for name, fields in configurations().items()}
    return {plain_name(alias): name for name, aliases in called.items() for alias in aliases}


@cache
def configurations() -> Mapping[str, Mapping[str, Any]]:
    """Return what the published config.json files of the catalogue say about sizes, `native` and `hub`."""
    catalogue: Mapping[str, Mapping[str, Any]]
    catalogue = tomllib.loads(files(__package__).joinpath("shapes.toml").read_text(encoding="utf-8"))
    return catalogue
