"""Log-probabilities of generated tokens in OpenAI's two shapes."""

from collections.abc import Iterable, Sequence
from typing import Any

from ringkv.base.events import TokenLogprob
from ringkv.server.generation import Piece
from ringkv.text.tokenizer import Tokenizer

LEAST = -9999.0  # JSON has no minus infinity


def completion_logprobs(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> dict[str, Any] | None:
    """Parallel lists, as completions have them; None when none were asked for.

    `text_offset` counts from the start of the choice's text. Tokens of one text share one entry of `top_logprobs`. A
    prompt's first token has nothing before it, and so null.
    """
    lines = [(piece.token, piece.logprob, piece.offset) for piece in pieces if piece.token is not None]
    if all(logprob is None for _, logprob, _ in lines):
        return None
    return {
        "tokens": [tokenizer.token_text(token) for token, _, _ in lines],
        "token_logprobs": [logprob and _finite(logprob.logprob) for _, logprob, _ in lines],
        "top_logprobs": [logprob and _by_text(tokenizer, token, logprob) for token, logprob, _ in lines],
        "text_offset": [offset for _, _, offset in lines],
    }


def chat_logprobs(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> dict[str, Any] | None:
    """One entry a token, as chat completions have them; None when none were asked for."""
    content = [
        _entry(tokenizer, piece.token, piece.logprob.logprob)
        | {"top_logprobs": [_entry(tokenizer, token, value) for token, value in piece.logprob.top]}
        for piece in pieces
        if piece.token is not None and piece.logprob is not None
    ]
    return {"content": content, "refusal": None} if content else None


def _by_text(tokenizer: Tokenizer, token: int, logprob: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens and the drawn one, likeliest first; of tokens with one text, the likelier."""
    ranked: Iterable[tuple[int, float]] = sorted({**dict(logprob.top), token: logprob.logprob}.items(), key=_falling)
    texts: dict[str, float] = {}
    for other, value in ranked:
        texts.setdefault(tokenizer.token_text(other), _finite(value))
    return texts


def _falling(item: tuple[int, float]) -> float:
    return -item[1]


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    return {
        "token": tokenizer.token_text(token),
        "logprob": _finite(logprob),
        "bytes": list(tokenizer.token_bytes(token)),
    }


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
