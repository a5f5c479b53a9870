"""POST /v1/chat/completions."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Literal
from uuid import uuid4

from fastapi import APIRouter, Response
from fastapi import Request as HTTPRequest

from ringkv.base.engine import Limits
from ringkv.server.api.documents import Document, FinishReason, Usage, answers
from ringkv.server.api.logprobs import ChatLogprobs, chat_logprobs
from ringkv.server.api.message_builder import ChatMessage, MessageBuilder
from ringkv.server.run.answer import JSON, answer
from ringkv.server.run.generation import TokenOutput
from ringkv.server.run.grammars import grammar_of
from ringkv.server.run.refusals import OF_COMPLETIONS, refuse_unsupported, refuse_unsupported_messages
from ringkv.server.run.rendered_chat import RenderedChat
from ringkv.server.run.requests import build_requests
from ringkv.server.run.schemas import ChatBody
from ringkv.server.run.serving import Models
from ringkv.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 1024


class ChatChoice(Document):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Document):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


def chat_router(models: Models) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", responses=answers(ChatCompletion))
    async def chat(body: ChatBody, http: HTTPRequest) -> Response:
        serving = models.find(body.model)
        model = serving.name(body.model)
        refuse_unsupported(body, OF_COMPLETIONS)
        refuse_unsupported_messages(body.messages)
        rendered = await asyncio.to_thread(RenderedChat.of, serving, body, serving.engine.limits.longest_prompt)
        grammar = await grammar_of(serving, http, body, rendered.calls)
        formatter = ChatFormatter(
            f"chatcmpl-{uuid4().hex}",
            int(time.time()),
            model,
            serving.tokenizer,
            rendered.constrained_by(grammar),
            parallel_calls=body.parallel_tool_calls is not False,
        )
        max_tokens = chat_max_tokens(body, len(rendered.prompt), serving.engine.limits)
        requests = build_requests(
            serving, formatter.id, body, [rendered.prompt], max_tokens, rendered.system_tokens, grammar
        )
        return await answer(serving, http, body, requests, formatter)

    return router


def chat_max_tokens(body: ChatBody, prompt_tokens: int, limits: Limits) -> int:
    """Return `max_completion_tokens`, else `max_tokens`, else the default."""
    for requested in (body.max_completion_tokens, body.max_tokens):
        if requested is not None:
            return requested
    return default_max_tokens(prompt_tokens, limits)


def default_max_tokens(prompt_tokens: int, limits: Limits) -> int:
    """Return the tokens that the model's context leaves after the prompt, at most `DEFAULT_MAX_TOKENS`."""
    return max(1, min(DEFAULT_MAX_TOKENS, limits.context - prompt_tokens))


class ChatFormatter:
    """parallel_calls: an answer may contain more than one tool call."""

    continues = False

    def __init__(
        self,
        id: str,
        created: int,
        model: str,
        tokenizer: Tokenizer,
        rendered: RenderedChat,
        parallel_calls: bool = True,
    ) -> None:
        self.id, self.created, self.model, self.tokenizer = id, created, model, tokenizer
        self._rendered, self._parallel_calls = rendered, parallel_calls
        self._streamed: dict[int, MessageBuilder] = {}

    def complete(self, choices: Sequence[Sequence[TokenOutput]], usage: JSON) -> JSON:
        builders = [self._builder() for _ in choices]
        formatted = [
            self._choice(index, outputs, "message", builder.complete(outputs), builder)
            for index, (outputs, builder) in enumerate(zip(choices, builders, strict=True))
        ]
        usage = _with_reasoning(usage, builders)
        return self._head("chat.completion") | {"choices": formatted, "usage": usage}

    @property
    def head(self) -> JSON:
        return self._head("chat.completion.chunk")

    def choice(self, index: int, output: TokenOutput) -> JSON:
        builder = self._streamed.get(index) or self._streamed.setdefault(index, self._builder())
        # The role comes with the first token: clients would count a delta of its own as that token.
        role = {"role": "assistant"} if output.is_first else {}
        return self._choice(index, [output], "delta", role | builder.delta(output), builder)

    def usage(self, usage: JSON) -> JSON:
        return _with_reasoning(usage, self._streamed.values())

    def _builder(self) -> MessageBuilder:
        return MessageBuilder(self._rendered.reader(), self._parallel_calls)

    def _head(self, kind: str) -> JSON:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _choice(
        self, index: int, outputs: Sequence[TokenOutput], key: str, message: JSON, builder: MessageBuilder
    ) -> JSON:
        finish = outputs[-1].finish
        return {
            "index": index,
            key: message,
            "logprobs": chat_logprobs(self.tokenizer, outputs),
            "finish_reason": finish and builder.finish_reason(finish.reason),
        }


def _with_reasoning(usage: JSON, builders: Iterable[MessageBuilder]) -> JSON:
    """Return the usage with the number of reasoning tokens, if there are any."""
    reasoning_tokens = sum(builder.reasoning_tokens for builder in builders)
    if not reasoning_tokens:
        return usage
    details = usage.get("completion_tokens_details", {}) | {"reasoning_tokens": reasoning_tokens}
    return usage | {"completion_tokens_details": details}
