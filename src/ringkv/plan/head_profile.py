"""head_profile: how much of the entries each key-value head needs, measured by `ringkv profile` and kept in a file.

{"text": "5f3c...", "parts": 8, "scores": [[[0.11, 0.02], ...], ...], "model": "90ab..."}

A score is of a part of the text, a layer and a head.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ringkv.base.config import EngineConfig, HeadShares
from ringkv.base.errors import BadWeights, InvalidRequest
from ringkv.base.json_file import read_object
from ringkv.base.kv import KVChoice
from ringkv.base.progress import Progress
from ringkv.machine.folders import replacing
from ringkv.models.config import ModelConfig
from ringkv.plan.options import Options
from ringkv.weights.files import stamps

FILE = "head_profile.json"
"""Its name beside a model's weights."""

Parts = Sequence[Sequence[int]]
"""Of a text, in tokens."""


@dataclass(frozen=True)
class HeadProfile:
    """text: a digest of its tokens. parts: of the text. scores: of the parts that are measured so far.

    model: the `model_key` of what is measured; "" in an older file.
    """

    text: str
    parts: int
    scores: tuple[HeadShares, ...] = ()
    model: str = ""

    @property
    def shares(self) -> HeadShares:
        """The mean score of each head; none for a layer that keeps what its sliding window or another layer says."""
        each = zip(*self.scores, strict=True)
        return tuple(tuple(sum(head) / len(head) for head in zip(*layer, strict=True)) for layer in each)

    @property
    def is_whole(self) -> bool:
        """Whether all parts are measured."""
        return len(self.scores) == self.parts

    def write(self, path: Path) -> None:
        """Replace the file at once, so that an interruption leaves the old one. Raises OSError."""
        with replacing(path) as new:
            new.write_text(json.dumps(vars(self)) + "\n", encoding="ascii")


def read(path: Path) -> HeadProfile:
    """Raises InvalidRequest if the file is not a whole profile."""
    profile = _read(path)
    if profile is None or not profile.is_whole:
        raise InvalidRequest(f"{path} is not a profile of heads; delete it, and run ringkv profile again", "kv_profile")
    return profile


def model_key(engine: EngineConfig) -> str:
    """Return a key of a model's files and of how an engine computes with them."""
    computed = engine.dtype, engine.weights, engine.activations
    return hashlib.sha256(repr((stamps(engine.model_dir), computed)).encode()).hexdigest()


def measure(path: Path, model: str, parts: Parts, score: Callable[[Sequence[int]], HeadShares], tell: Progress) -> None:
    """Write the profile by the scores of parts of a text, unless it is there.

    model: the `model_key` of what computes the scores. Each is kept in `unfinished(path)`, from which an interrupted
    call goes on. The profile is replaced once all are there.
    """
    profile, partial = _so_far(path, model, parts), unfinished(path)
    if profile.is_whole and _read(path) == profile:
        return
    for part in parts[len(profile.scores) :]:
        tell(len(profile.scores), len(parts), "measuring parts of the text")
        profile = replace(profile, scores=(*profile.scores, score(part)))
        profile.write(partial)
    partial.replace(path)


def unfinished(path: Path) -> Path:
    """Return the file of a profile that is being measured."""
    return path.with_name(f"{path.name}.partial")


def measured(path: Path, model: str, parts: Parts) -> int:
    """Return how many of the parts are measured."""
    return len(_so_far(path, model, parts).scores)


def _so_far(path: Path, model: str, parts: Parts) -> HeadProfile:
    """Return the profile of a model by a text, as far as it is measured."""
    text = hashlib.sha256(json.dumps([list(part) for part in parts]).encode()).hexdigest()
    empty = HeadProfile(text, len(parts), model=model)
    profiles = filter(None, map(_read, (path, unfinished(path))))
    return next((profile for profile in profiles if replace(profile, scores=()) == empty), empty)


def _read(path: Path) -> HeadProfile | None:
    """Return None for a file that is missing or is not a profile."""
    try:
        raw = read_object(path)
        scores = tuple(tuple(map(tuple, part)) for part in raw["scores"])
        are_scores = all(0 <= score < float("inf") for part in scores for layer in part for score in layer)
        profile = HeadProfile(str(raw["text"]), int(raw["parts"]), scores, str(raw.get("model", "")))
    except (BadWeights, KeyError, TypeError, ValueError):
        return None
    has_same_heads = len({tuple(map(len, part)) for part in scores}) <= 1
    return profile if has_same_heads and are_scores else None


def head_shares(folder: Path, config: ModelConfig, options: Options, kv: KVChoice) -> HeadShares:
    """Return the shares of a model's heads; () if there is no profile and the default choice needs none.

    Raises InvalidRequest for a profile that is missing, or of another model.
    """
    given = options.kv_profile
    if kv.heads == "equal":
        if given is not None:
            raise InvalidRequest(
                "kv_profile is for heads that divide a slot, and kv_heads is equal; set kv_heads profile, or leave it "
                "out",
                "kv_profile",
            )
        return ()
    path = folder / FILE if given is None else Path(given).expanduser()
    if not path.is_file():
        if given is None and kv.heads != "profile":
            return ()
        raise InvalidRequest(
            f"kv_heads {kv.heads} finds no profile of the model's heads, {path}; run ringkv profile {folder}, or "
            "choose global",
            "kv_heads",
        )
    shares = read(path).shares
    if tuple(map(len, shares)) != heads_of(config):
        raise InvalidRequest(
            f"{path} is a profile of another model, with {len(shares)} layers; run ringkv profile {folder}",
            "kv_profile",
        )
    return shares


def heads_of(config: ModelConfig) -> tuple[int, ...]:
    """Return how many heads of each layer divide entries; 0 if a layer keeps what a window or another layer says."""
    heads = {layer: group.spec.key.heads for group in config.groups if group.window is None for layer in group.layers}
    return tuple(heads.get(layer, 0) for layer in range(config.num_layers))
