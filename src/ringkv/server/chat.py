"""POST /v1/chat/completions."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar
from uuid import uuid4

from fastapi import APIRouter, Response
from fastapi import Request as HTTPRequest

from ringkv.base.engine import Limits
from ringkv.base.errors import InvalidRequest
from ringkv.server.answer import JSON, answer
from ringkv.server.generation import Piece
from ringkv.server.logprobs import chat_logprobs
from ringkv.server.refusals import refuse_unsupported, refuse_unsupported_turns
from ringkv.server.requests import build_requests
from ringkv.server.schemas import ChatBody, Turn
from ringkv.server.serving import Serving
from ringkv.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 1024
NEWER_SYSTEM = "developer"  # OpenAI's newer name for the system role; templates know the older


def chat_router(serving: Serving) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat(body: ChatBody, http: HTTPRequest) -> Response:
        model = serving.model(body.model)
        refuse_unsupported(body)
        refuse_unsupported_turns(body.messages)
        prompt, system = await asyncio.to_thread(encode_chat, serving, body)
        form = ChatForm(f"chatcmpl-{uuid4().hex}", int(time.time()), model, serving.tokenizer)
        max_tokens = chat_max_tokens(body, len(prompt), serving.engine.limits)
        requests = build_requests(serving, form.id, body, [prompt], max_tokens, chat_logprob_count(body), system)
        return await answer(serving, http, body, requests, form)

    return router


def encode_chat(serving: Serving, body: ChatBody) -> tuple[Sequence[int], int]:
    """The prompt, and how many of its first tokens hold the system message."""
    if serving.template is None:
        raise InvalidRequest(f"{serving.names[0]} has no chat template; use /v1/completions", "messages")
    turns = [as_template_knows(turn) for turn in body.messages]
    template, variables = serving.template, body.chat_template_kwargs
    prompt = template.encode(turns, serving.tokenizer, variables=variables)
    return prompt, template.system_tokens(turns, serving.tokenizer, variables=variables)


def as_template_knows(turn: Turn) -> Turn:
    role = turn.get("role")
    return turn | {"role": "system" if role == NEWER_SYSTEM else role, "content": turn.get("content") or ""}


def chat_max_tokens(body: ChatBody, prompt: int, limits: Limits) -> int:
    """What was asked for, by either name; else what the model's context leaves, up to a default."""
    for asked in (body.max_completion_tokens, body.max_tokens):
        if asked is not None:
            return asked
    return max(1, min(DEFAULT_MAX_TOKENS, limits.context - prompt))


def chat_logprob_count(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidRequest(f"top_logprobs is {body.top_logprobs}; it needs logprobs to be true", "top_logprobs")
    return None


@dataclass(frozen=True)
class ChatForm:
    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    continues: ClassVar[bool] = False

    def whole(self, choices: Sequence[JSON], usage: JSON) -> JSON:
        return self._envelope("chat.completion", choices) | {"usage": usage}

    def chunk(self, choices: Sequence[JSON]) -> JSON:
        return self._envelope("chat.completion.chunk", choices)

    def _envelope(self, kind: str, choices: Sequence[JSON]) -> JSON:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }

    def choice(self, index: int, pieces: Sequence[Piece]) -> JSON:
        text = "".join(piece.text for piece in pieces)
        return self._choice(index, pieces, "message", {"role": "assistant", "content": text, "refusal": None})

    def delta(self, index: int, piece: Piece) -> JSON:
        # The role comes with the first token: a delta of its own would be taken for that token.
        role = {"role": "assistant"} if piece.is_first else {}
        return self._choice(index, [piece], "delta", role | {"content": piece.text})

    def _choice(self, index: int, pieces: Sequence[Piece], key: str, message: JSON) -> JSON:
        finish = pieces[-1].finish
        return {
            "index": index,
            key: message,
            "logprobs": chat_logprobs(self.tokenizer, pieces),
            "finish_reason": finish and finish.reason,
        }
