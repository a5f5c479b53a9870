"""POST /v1/chat/completions."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from uuid import uuid4

from fastapi import APIRouter, Response
from fastapi import Request as HTTPRequest

from ringkv.base.engine import Limits
from ringkv.server.answer import JSON, answer
from ringkv.server.documents import ChatCompletion, answers
from ringkv.server.generation import Piece
from ringkv.server.grammars import grammar_of
from ringkv.server.logprobs import chat_logprobs
from ringkv.server.message import Message
from ringkv.server.refusals import OF_COMPLETIONS, refuse_unsupported, refuse_unsupported_turns
from ringkv.server.requests import build_requests
from ringkv.server.schemas import ChatBody
from ringkv.server.serving import Serving
from ringkv.server.talk import Talk
from ringkv.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 1024


def chat_router(serving: Serving) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", responses=answers(ChatCompletion))
    async def chat(body: ChatBody, http: HTTPRequest) -> Response:
        model = serving.model(body.model)
        refuse_unsupported(body, OF_COMPLETIONS)
        refuse_unsupported_turns(body.messages)
        talk = await asyncio.to_thread(Talk.of, serving, body, serving.engine.limits.longest_prompt)
        grammar = await grammar_of(serving, body, talk.calls)
        several = body.parallel_tool_calls is not False
        form = ChatForm(
            f"chatcmpl-{uuid4().hex}", int(time.time()), model, serving.tokenizer, talk.held_to(grammar), several
        )
        max_tokens = chat_max_tokens(body, len(talk.prompt), serving.engine.limits)
        requests = build_requests(serving, form.id, body, [talk.prompt], max_tokens, talk.system, grammar)
        return await answer(serving, http, body, requests, form)

    return router


def chat_max_tokens(body: ChatBody, prompt: int, limits: Limits) -> int:
    """What was asked for, by either name; else what the model's context leaves, up to a default."""
    for asked in (body.max_completion_tokens, body.max_tokens):
        if asked is not None:
            return asked
    return default_max_tokens(prompt, limits)


def default_max_tokens(prompt: int, limits: Limits) -> int:
    return max(1, min(DEFAULT_MAX_TOKENS, limits.context - prompt))


class ChatForm:
    """several: an answer may hold more than one call."""

    continues = False

    def __init__(
        self, id: str, created: int, model: str, tokenizer: Tokenizer, talk: Talk, several: bool = True
    ) -> None:
        self.id, self.created, self.model, self.tokenizer = id, created, model, tokenizer
        self._talk, self._several = talk, several
        self._streamed: dict[int, Message] = {}

    def whole(self, choices: Sequence[Sequence[Piece]], usage: JSON) -> JSON:
        messages = [self._message() for _ in choices]
        words = [
            self._choice(index, pieces, "message", message.whole(pieces), message)
            for index, (pieces, message) in enumerate(zip(choices, messages, strict=True))
        ]
        return self._envelope("chat.completion", words) | {"usage": _with_thoughts(usage, messages)}

    def chunk(self, index: int, piece: Piece) -> JSON:
        message = self._streamed.get(index) or self._streamed.setdefault(index, self._message())
        # The role comes with the first token: a delta of its own would be taken for that token.
        role = {"role": "assistant"} if piece.is_first else {}
        choice = self._choice(index, [piece], "delta", role | message.delta(piece), message)
        return self._envelope("chat.completion.chunk", [choice])

    def last(self, usage: JSON) -> JSON:
        return self._envelope("chat.completion.chunk", []) | {"usage": _with_thoughts(usage, self._streamed.values())}

    def _message(self) -> Message:
        return Message(self._talk.reader(), self._several)

    def _envelope(self, kind: str, choices: Sequence[JSON]) -> JSON:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
        }

    def _choice(self, index: int, pieces: Sequence[Piece], key: str, said: JSON, message: Message) -> JSON:
        finish = pieces[-1].finish
        return {
            "index": index,
            key: said,
            "logprobs": chat_logprobs(self.tokenizer, pieces),
            "finish_reason": finish and message.finish_reason(finish.reason),
        }


def _with_thoughts(usage: JSON, messages: Iterable[Message]) -> JSON:
    """The usage, and how many tokens were thought, if any were."""
    reasoned = sum(message.reasoned for message in messages)
    if not reasoned:
        return usage
    return usage | {
        "completion_tokens_details": usage.get("completion_tokens_details", {}) | {"reasoning_tokens": reasoned}
    }
