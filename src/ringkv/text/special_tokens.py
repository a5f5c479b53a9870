"""Which tokens of a model directory have a role: beginning, end, padding, unknown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringkv.text.files import read_json

ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


def special_tokens(directory: Path) -> dict[str, str]:
    """Return role -> text. What tokenizer_config.json says, a null included, wins over special_tokens_map.json."""
    said = read_json(directory / "special_tokens_map.json") | read_json(directory / "tokenizer_config.json")
    texts = {role: _text(said.get(role)) for role in ROLES}
    return {role: text for role, text in texts.items() if text is not None}


def bos_id(directory: Path, token_to_id: Callable[[str], int | None]) -> int | None:
    """Return the id of the beginning-of-sequence token; a tokenizer that says it has none is believed."""
    if text := special_tokens(directory).get("bos_token"):
        return token_to_id(text)
    if "bos_token" in read_json(directory / "tokenizer_config.json"):
        return None
    return next(iter(_ids(read_json(directory / "config.json").get("bos_token_id"))), None)


def eos_ids(directory: Path, token_to_id: Callable[[str], int | None]) -> tuple[int, ...]:
    """Return every id that ends a text: of config.json, generation_config.json and the tokenizer, each once."""
    configs = (read_json(directory / name) for name in ("config.json", "generation_config.json"))
    ids = [id for config in configs for id in _ids(config.get("eos_token_id"))]
    text = special_tokens(directory).get("eos_token")
    of_tokenizer = None if text is None else token_to_id(text)
    return tuple(dict.fromkeys(ids if of_tokenizer is None else [*ids, of_tokenizer]))


def _text(value: Any) -> str | None:
    """A special token is written as its text, or as an object with its text under "content"."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _ids(value: Any) -> list[int]:
    """An id is written alone or in a list; some configs write null, or -1, for none."""
    values = value if isinstance(value, list) else [value]
    return [id for id in values if isinstance(id, int) and id >= 0]
