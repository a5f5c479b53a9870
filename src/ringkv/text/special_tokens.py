"""Tokens with a role in a model directory: beginning, end, padding, unknown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringkv.text.files import read_json

ROLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


def special_tokens(directory: Path) -> dict[str, str]:
    """Return role -> text. tokenizer_config.json overrides special_tokens_map.json, even with null."""
    config = read_json(directory / "special_tokens_map.json") | read_json(directory / "tokenizer_config.json")
    texts = {role: _text(config.get(role)) for role in ROLES}
    return {role: text for role, text in texts.items() if text is not None}


def bos_id(directory: Path, token_to_id: Callable[[str], int | None]) -> int | None:
    """Return the beginning-of-sequence id: the tokenizer's, else config.json's; None if the tokenizer has null."""
    if text := special_tokens(directory).get("bos_token"):
        return token_to_id(text)
    if "bos_token" in read_json(directory / "tokenizer_config.json"):
        return None
    return next(iter(_ids(read_json(directory / "config.json").get("bos_token_id"))), None)


def eos_ids(directory: Path, token_to_id: Callable[[str], int | None]) -> tuple[int, ...]:
    """Return the ids that end a text, without duplicates: config.json's, generation_config.json's, the tokenizer's."""
    configs = (read_json(directory / name) for name in ("config.json", "generation_config.json"))
    ids = [id for config in configs for id in _ids(config.get("eos_token_id"))]
    text = special_tokens(directory).get("eos_token")
    of_tokenizer = None if text is None else token_to_id(text)
    return tuple(dict.fromkeys(ids if of_tokenizer is None else [*ids, of_tokenizer]))


def _text(value: Any) -> str | None:
    """Return the text of a special token, which is a string or an object with "content"."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _ids(value: Any) -> list[int]:
    """Return one id or a list of ids as a list; some configs have null or -1 for none."""
    values = value if isinstance(value, list) else [value]
    return [id for id in values if type(id) is int and id >= 0]
