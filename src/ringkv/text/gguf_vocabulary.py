"""Vocabulary: a view of the tokenizer in a GGUF's metadata."""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from tokenizers import AddedToken

from ringkv.base.errors import BadWeights

# A GGUF may omit add_bos_token; these tokenizers then add a beginning-of-sequence token.
BEGINS_BY_DEFAULT = {"llama", "llama-bpe", "llama3", "llama-v3"}


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

    metadata: dict[str, Any]
    name: str

    @property
    def model(self) -> str:
        return str(self._get("model", "none"))

    @property
    def pre(self) -> str:
        """The name of the rule that splits text before merging; "" if the file has none."""
        return str(self._get("pre", ""))

    @cached_property
    def tokens(self) -> list[str]:
        tokens = self._get("tokens", [])
        if not tokens:
            raise BadWeights(f"{self.name} has no tokenizer; put the model's tokenizer.json next to it")
        return list(tokens)

    @cached_property
    def types(self) -> list[int]:
        return list(self._get("token_type", [])) or [TokenType.NORMAL] * len(self.tokens)

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
        pairs = (merge.partition(" ") for merge in self._get("merges", []))
        return [(left, right) for left, _, right in pairs]

    def scores(self) -> list[float]:
        return list(self._get("scores", []))

    def role_id(self, role: str) -> int | None:
        """Return the id of "bos", "eos", "eot", "eom", "unknown" or "padding", None if the file has none."""
        id = self._get(f"{role}_token_id", None)
        return int(id) if id is not None and 0 <= id < len(self.tokens) else None

    def role(self, role: str) -> str | None:
        return None if (id := self.role_id(role)) is None else self.tokens[id]

    def adds(self, role: str) -> bool:
        """Return whether the tokenizer adds "bos" or "eos" to a text."""
        default = role == "bos" and (self.model in BEGINS_BY_DEFAULT or self.pre in BEGINS_BY_DEFAULT)
        return bool(self._get(f"add_{role}_token", default)) and self.role_id(role) is not None

    def adds_space(self) -> bool:
        """Return whether the tokenizer adds a space before a text, as SentencePiece does."""
        return bool(self._get("add_space_prefix", True))

    def chat_templates(self) -> str | list[dict[str, str]] | None:
        """Return the template, or the named templates if there are several, in the format of tokenizer_config.json."""
        default = self.metadata.get("tokenizer.chat_template")
        names = self.metadata.get("tokenizer.chat_templates", [])
        named = {name: self.metadata[f"tokenizer.chat_template.{name}"] for name in names}
        if not named:
            return default
        templates = ({"default": default} if default else {}) | named
        return [{"name": name, "template": template} for name, template in templates.items()]

    def _get(self, key: str, default: Any) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}", default)
