"""POST /v1/completions."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import uuid4

from fastapi import APIRouter, Response
from fastapi import Request as HTTPRequest

from ringkv.server.answer import JSON, answer
from ringkv.server.generation import Piece
from ringkv.server.logprobs import completion_logprobs
from ringkv.server.refusals import refuse_unsupported
from ringkv.server.requests import build_requests
from ringkv.server.schemas import CompletionBody
from ringkv.server.serving import Serving
from ringkv.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16  # OpenAI's


def completions_router(serving: Serving) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/completions")
    async def complete(body: CompletionBody, http: HTTPRequest) -> Response:
        model = serving.model(body.model)
        refuse_unsupported(body)
        prompts = await asyncio.to_thread(encode_prompts, serving.tokenizer, body)
        form = CompletionForm(f"cmpl-{uuid4().hex}", int(time.time()), model, serving.tokenizer)
        max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        requests = build_requests(serving, form.id, body, prompts, max_tokens, body.logprobs)
        return await answer(serving, http, body, requests, form)

    return router


def encode_prompts(tokenizer: Tokenizer, body: CompletionBody) -> list[Sequence[int]]:
    special = body.add_special_tokens is not False
    return [tokenizer.encode(p, add_special_tokens=special) if isinstance(p, str) else p for p in body.prompt]


@dataclass(frozen=True)
class CompletionForm:
    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    continues: ClassVar[bool] = True

    def whole(self, choices: Sequence[JSON], usage: JSON) -> JSON:
        return self.chunk(choices) | {"usage": usage}

    def chunk(self, choices: Sequence[JSON]) -> JSON:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }

    def choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        finish = pieces[-1].finish
        return {
            "index": index,
            "text": "".join(piece.text for piece in pieces),
            "logprobs": completion_logprobs(self.tokenizer, pieces),
            "finish_reason": finish and finish.reason,
        }

    def delta(self, index: int, piece: Piece) -> dict[str, Any]:
        return self.choice(index, [piece])
