"""Log-probabilities of tokens in OpenAI's two formats."""

from collections.abc import Sequence
from typing import Any

from ringkv.base.events import TokenLogprob
from ringkv.server.api.documents import Document
from ringkv.server.run.generation import TokenOutput
from ringkv.text.tokenizer import Tokenizer

MIN_LOGPROB = -9999.0  # JSON has no minus infinity


class CompletionLogprobs(Document):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class Logprob(Document):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(Logprob):
    top_logprobs: list[Logprob]


class ChatLogprobs(Document):
    content: list[TokenLogprobs]
    refusal: None


def completion_logprobs(tokenizer: Tokenizer, outputs: Sequence[TokenOutput]) -> dict[str, Any] | None:
    """Return the parallel lists of a completion, or None if no log-probabilities were requested.

    `text_offset` counts characters from the start of the choice's text. Tokens with equal text share one entry of
    `top_logprobs`. A prompt's first token has null.
    """
    if all(output.logprob is None for output in outputs):
        return None
    tokens = [(output.token, output.logprob, output.offset) for output in outputs if output.token is not None]
    return {
        "tokens": [tokenizer.token_text(token) for token, _, _ in tokens],
        "token_logprobs": [logprob and _finite(logprob.logprob) for _, logprob, _ in tokens],
        "top_logprobs": [logprob and _by_text(tokenizer, token, logprob) for token, logprob, _ in tokens],
        "text_offset": [offset for _, _, offset in tokens],
    }


def chat_logprobs(tokenizer: Tokenizer, outputs: Sequence[TokenOutput]) -> dict[str, Any] | None:
    """Return the entries of a chat completion, one per token, or None if no log-probabilities were requested."""
    content = [
        _entry(tokenizer, output.token, output.logprob.logprob)
        | {"top_logprobs": [_entry(tokenizer, token, value) for token, value in output.logprob.top]}
        for output in outputs
        if output.token is not None and output.logprob is not None
    ]
    return {"content": content, "refusal": None} if content else None


def _by_text(tokenizer: Tokenizer, token: int, logprob: TokenLogprob) -> dict[str, float]:
    """Return the top tokens and the sampled token, highest first. Of tokens with equal text the higher value counts."""
    values = {**dict(logprob.top), token: logprob.logprob}
    texts: dict[str, float] = {}
    for other, value in sorted(values.items(), key=lambda item: -item[1]):
        texts.setdefault(tokenizer.token_text(other), _finite(value))
    return texts


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token),
        "logprob": _finite(logprob),
        "bytes": list(tokenizer.token_bytes(token)),
    }


def _finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)
