"""The models that ringkv downloads by name, listed in `catalogue.toml`."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from ringkv.base.config import Weights
from ringkv.base.errors import UnknownModel
from ringkv.plan.complete import is_quantisable
from ringkv.plan.options import Options

RARELY = 50  # percent; a model that finds fewer facts is no measure of a cache
CUTOFF = 0.7  # difflib's similarity of two names; llama3 and smollm2 have 0.46


@dataclass(frozen=True)
class WheelPart:
    """A file inside a wheel: one part of a GGUF."""

    package: str
    version: str
    member: str  # path inside the wheel
    member_bytes: int
    bytes: int  # of the wheel
    sha256: str  # of the wheel

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class CatalogueModel:
    """One model: a GGUF, which is its parts joined in order."""

    name: str
    title: str
    licence: str
    context: int  # tokens
    file: str
    bytes: int  # of the GGUF
    sha256: str  # of the GGUF
    converted_bytes: int  # of its directory in Hugging Face layout, approximate
    parts: tuple[WheelPart, ...]
    weights: Weights | None = None  # that a CPU serves it with, unless others are given
    sampling: Mapping[str, float] = field(default_factory=dict)  # as in generation_config.json
    finds: int | None = None  # percent of RULER's facts among many alike, with the full cache

    @property
    def download_bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


@cache
def catalogue() -> Mapping[str, CatalogueModel]:
    """Return all models by name, in the order of the file."""
    text = files("ringkv.residency").joinpath("catalogue.toml").read_text(encoding="utf-8")
    models = {}
    for name, fields in tomllib.loads(text).items():
        version = fields.pop("version")
        parts = tuple(WheelPart(package, version, *rest) for package, *rest in fields.pop("parts"))
        models[name] = CatalogueModel(name=name, parts=parts, **fields)
    return models


def catalogued(name: str) -> CatalogueModel:
    """Return the model of that name. Raises UnknownModel with the nearest name."""
    if name in catalogue():
        return catalogue()[name]
    near = nearest(name)
    guess = f"did you mean {near}? " if near else ""
    raise UnknownModel(f"{name!r} is not in the catalogue; {guess}It lists {', '.join(catalogue())}")


def with_usual_weights(name: str, options: Options) -> Options:
    """Return the options with the weights that the catalogue has for a model, if they name none."""
    is_usual = is_quantisable(options.dtype or "bfloat16", options.device or "cpu")
    return options.filled(weights=catalogue()[name].weights) if is_usual and name in catalogue() else options


def caution(name: str) -> str:
    """Return a sentence about a model that rarely finds a fact even with the full cache; "" of all others."""
    finds = {each.name: each.finds for each in catalogue().values() if each.finds is not None}
    best = max(finds, key=finds.__getitem__)
    if finds.get(name, RARELY) >= RARELY:
        return ""
    title, _, _ = catalogue()[name].title.partition(" (")
    return (
        f"{title} rarely finds such a fact: {finds[name]}% of RULER's even with the full cache, where {best} finds "
        f"{finds[best]}%; try that model."
    )


def nearest(name: str) -> str | None:
    """Return the most similar name of the catalogue; None if none is similar."""
    return next(iter(get_close_matches(name.lower(), catalogue(), n=1, cutoff=CUTOFF)), None)
