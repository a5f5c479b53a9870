"""config: reads config.json into the configuration of its model's family. No torch."""

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from ringkv.base.errors import UnknownModel, UnsupportedModel
from ringkv.base.json_file import read_object
from ringkv.base.shown import shown_names
from ringkv.models.base import ModelConfig
from ringkv.models.families.registry import FAMILIES
from ringkv.models.fields import Raw, texts
from ringkv.models.layer import RopeConfig
from ringkv.models.rotatable import refuse_online
from ringkv.models.stored_head import has_head

LONGEST = 100  # characters of a name that are compared

__all__ = ["ModelConfig", "RopeConfig", "load_config", "parse_config"]


def load_config(directory: Path) -> ModelConfig:
    """Read config.json, and generation_config.json if there is one, of a directory in Hugging Face layout.

    A model whose files have a vocabulary projection that differs from the embedding is not tied, whatever config.json
    says.

    Raises UnknownModel (no config.json), BadWeights (not JSON, or incomplete), UnsupportedModel.
    """
    path = directory / "config.json"
    if not path.is_file():
        raise UnknownModel(f"{directory} has no config.json; give a directory in Hugging Face layout")
    generation = directory / "generation_config.json"
    config = parse_config(read_object(path), read_object(generation) if generation.is_file() else {})
    tied = config.tied_embeddings and not has_head(directory, config.embedding_name, config.head_name)
    return replace(config, tied_embeddings=tied)


def parse_config(raw: Raw, generation: Raw | None = None) -> ModelConfig:
    """Translate a parsed config.json; `generation` is a parsed generation_config.json.

    Raises BadWeights if a required number is missing or invalid, UnsupportedModel for what is not implemented.
    """
    architecture = _architecture(raw)
    config = FAMILIES[architecture].read(raw, generation or {}, architecture)
    refuse_online(config)
    return config


def _architecture(raw: Raw) -> str:
    model_type = raw.get("model_type")
    of_type = (name for name, family in FAMILIES.items() if family.model_type == model_type)
    name = next(iter(texts(raw, "architectures") or of_type), f"model_type {model_type!r}")
    if name not in FAMILIES:
        raise UnsupportedModel(
            f"architecture {shown_names([name])} is not implemented{_nearest(name)}; ringkv runs {', '.join(FAMILIES)}"
        )
    return name


def _nearest(name: str) -> str:
    """Return the architecture with the most similar name, and a model that has it; nothing if none is similar."""
    stems = {known.partition("For")[0]: known for known in reversed(list(FAMILIES))}  # before "ForCausalLM"
    near = get_close_matches(name.partition("For")[0][:LONGEST], stems, n=1)
    return f"; {stems[near[0]]} is, such as {FAMILIES[stems[near[0]]].example}" if near else ""
