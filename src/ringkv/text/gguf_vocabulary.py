"""Vocabulary: a view of the tokenizer in a GGUF's metadata."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal, TypeVar

import msgspec
from tokenizers import AddedToken

from ringkv.base.errors import BadWeights
from ringkv.base.shown import shown
from ringkv.weights.gguf.header import is_utf8

T = TypeVar("T")
D = TypeVar("D")

# A GGUF may omit add_bos_token; these tokenizers then add a beginning-of-sequence token.
BEGINS_BY_DEFAULT = {"llama", "llama-bpe", "llama3", "llama-v3", "tekken", "gemma4"}

FLAG: Any = bool | Literal[0, 1]  # some writers store a number
LARGEST_WORK = 1 << 30  # sum of squared token lengths; every token is cut at every place to find its merges


class TokenType(IntEnum):
    """GGUF's kinds of token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """The keys under tokenizer.*. name: the file, for error messages."""

    metadata: Mapping[str, Any]
    name: str

    @property
    def model(self) -> str:
        return self._get(".model", str, "none")

    @property
    def pre(self) -> str:
        """The name of the rule that splits text before merging; "" if the file has none."""
        return self._get(".pre", str, "")

    @cached_property
    def tokens(self) -> list[str]:
        tokens = self._get(".tokens", list[str], [])
        if not tokens:
            raise BadWeights(f"{self.name} has no tokenizer; put the model's tokenizer.json next to it")
        if sum(len(token) ** 2 for token in tokens) > LARGEST_WORK:
            longest = max(map(len, tokens))
            raise BadWeights(f"{self.name} has tokens of up to {longest:,} characters; download it again")
        return tokens

    @cached_property
    def types(self) -> list[int]:
        return self._per_token(".token_type", list[int]) or [TokenType.NORMAL] * len(self.tokens)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Token -> id, without the padding that some writers add to round up the count."""
        padding = (f"[PAD{id}]" if type == TokenType.UNUSED else None for id, type in enumerate(self.types))
        return {token: id for (id, token), pad in zip(enumerate(self.tokens), padding, strict=True) if token != pad}

    @property
    def special_ids(self) -> list[int]:
        return [id for id, type in enumerate(self.types) if type in (TokenType.CONTROL, TokenType.UNKNOWN)]

    def added_tokens(self) -> list[AddedToken]:
        """Return the tokens that are matched in a text before splitting, in order of id."""
        special = set(self.special_ids)
        ids = [id for id, type in enumerate(self.types) if id in special or type == TokenType.USER_DEFINED]
        return [AddedToken(self.tokens[id], special=id in special, normalized=False) for id in ids if self.tokens[id]]

    def merges(self) -> list[tuple[str, str]]:
        pairs = (merge.partition(" ") for merge in self._get(".merges", list[str], []))
        return [(left, right) for left, _, right in pairs]

    def scores(self) -> list[float]:
        return self._per_token(".scores", list[float])

    def role_id(self, role: str) -> int | None:
        """Return the id of "bos", "eos", "eot", "eom", "unknown" or "padding", None if the file has none."""
        id = self._get(f".{role}_token_id", int, -1)
        return id if 0 <= id < len(self.tokens) else None

    def role(self, role: str) -> str | None:
        return None if (id := self.role_id(role)) is None else self.tokens[id]

    def adds(self, role: str) -> bool:
        """Return whether the tokenizer adds "bos" or "eos" to a text."""
        default = role == "bos" and (self.model in BEGINS_BY_DEFAULT or self.pre in BEGINS_BY_DEFAULT)
        return self._flag(f".add_{role}_token", default) and self.role_id(role) is not None

    def adds_space(self) -> bool:
        """Return whether the tokenizer adds a space before a text, as SentencePiece does."""
        return self._flag(".add_space_prefix", True)

    def chat_templates(self) -> str | list[dict[str, str]] | None:
        """Return the template, or the named templates if there are several, in the format of tokenizer_config.json."""
        default = self._get("tokenizer.chat_template", str, None)
        names = self._get("tokenizer.chat_templates", list[str], [])
        named = {name: self._get(f"tokenizer.chat_template.{name}", str, None) for name in names}
        if not named:
            return default
        templates = {"default": default, **named}
        return [{"name": name, "template": template} for name, template in templates.items() if template]

    def _flag(self, key: str, default: bool) -> bool:
        return bool(self._get(key, FLAG, default))

    def _per_token(self, key: str, values: type[list[T]]) -> list[T]:
        """Return a list with one value for each token; empty if the file has none."""
        given = self._get(key, values, [])
        if given and len(given) != len(self.tokens):
            raise BadWeights(
                f"{self.name} has {len(given):,} values of tokenizer.ggml{key} for {len(self.tokens):,} tokens; "
                "download it again"
            )
        return given

    def _get(self, key: str, kind: type[T], default: D) -> T | D:
        """Return a value of this type. A key that begins with a dot is one of tokenizer.ggml."""
        key = f"tokenizer.ggml{key}" if key.startswith(".") else key
        if (value := self.metadata.get(key)) is None:
            return default
        try:
            checked = msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise BadWeights(f"{self.name} has {key} {shown(value)} ({error}); download it again") from None
        texts = value if isinstance(value, list) else [value]
        if texts and isinstance(texts[0], str) and not is_utf8(texts):  # a GGUF's array has values of one type
            raise BadWeights(f"{self.name} has {key} that is not valid UTF-8; download it again")
        return checked
