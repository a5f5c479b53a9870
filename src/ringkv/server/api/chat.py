"""POST /v1/chat/completions."""

import asyncio
from collections.abc import Sequence
from typing import Literal
from uuid import uuid4

from fastapi import APIRouter, Response
from fastapi import Request as HTTPRequest

from ringkv.base.engine import Limits
from ringkv.server.api.documents import Answer, Document, FinishReason, answers
from ringkv.server.api.logprobs import ChatLogprobs, chat_logprobs
from ringkv.server.api.message_builder import ChatMessage, MessageBuilder
from ringkv.server.run.answer import JSON, Formatter, answer
from ringkv.server.run.generation import TokenOutput
from ringkv.server.run.grammars import grammar_of
from ringkv.server.run.refusals import OF_COMPLETIONS, refuse_unsupported, refuse_unsupported_messages
from ringkv.server.run.rendered_chat import RenderedChat
from ringkv.server.run.requests import build_requests
from ringkv.server.run.schemas import ChatBody
from ringkv.server.run.serving import Models, Serving
from ringkv.text.answers.reader import Reader

DEFAULT_MAX_TOKENS = 1024


class ChatChoice(Document):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(Answer):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


def chat_router(models: Models) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", summary="Answer a chat", responses=answers(ChatCompletion))
    async def chat(body: ChatBody, http: HTTPRequest) -> Response:
        serving = models.find(body.model)
        refuse_unsupported(body, OF_COMPLETIONS)
        refuse_unsupported_messages(body.messages)
        rendered = await asyncio.to_thread(RenderedChat.of, serving, body, serving.engine.limits.longest_prompt)
        grammar = await grammar_of(serving, http, body, rendered)
        formatter = ChatFormatter(serving, body, rendered)
        sent = (body.max_completion_tokens, body.max_tokens)
        max_tokens = max_tokens_of(sent, len(rendered.prompt), serving.engine.limits)
        requests = build_requests(
            serving, formatter.id, body, [rendered.prompt], max_tokens, rendered.system_tokens, grammar
        )
        return await answer(serving, http, body, requests, formatter)

    return router


def max_tokens_of(sent: Sequence[int | None], prompt_tokens: int, limits: Limits) -> int:
    """Return the first number that was sent.

    Without any, return the tokens that the model's context leaves after the prompt, at most `DEFAULT_MAX_TOKENS`.
    """
    default = max(1, min(DEFAULT_MAX_TOKENS, limits.context - prompt_tokens))
    return next((number for number in sent if number is not None), default)


class ChatFormatter(Formatter):
    answer_object, chunk_object = "chat.completion", "chat.completion.chunk"
    continues = False

    def __init__(self, serving: Serving, body: ChatBody, rendered: RenderedChat) -> None:
        super().__init__(f"chatcmpl-{uuid4().hex}", serving.name(body.model), serving.tokenizer)
        self._rendered, self._parallel_calls = rendered, body.parallel_tool_calls is not False
        self._builders: dict[int, MessageBuilder] = {}  # by index of a choice

    def reader(self) -> Reader:
        return self._rendered.reader()

    def complete(self, index: int, outputs: Sequence[TokenOutput]) -> JSON:
        return self._choice(index, outputs, {"message": self._builder(index).complete(outputs)})

    def choice(self, index: int, output: TokenOutput) -> JSON:
        # The role comes with the first token: clients would count a delta of its own as that token.
        role = {"role": "assistant"} if output.is_first else {}
        return self._choice(index, [output], {"delta": role | self._builder(index).delta(output)})

    def usage(self, usage: JSON) -> JSON:
        """Add the number of reasoning tokens, if there are any."""
        reasoning_tokens = sum(builder.reasoning_tokens for builder in self._builders.values())
        if not reasoning_tokens:
            return usage
        details = usage.get("completion_tokens_details", {}) | {"reasoning_tokens": reasoning_tokens}
        return usage | {"completion_tokens_details": details}

    def _builder(self, index: int) -> MessageBuilder:
        if index not in self._builders:
            self._builders[index] = MessageBuilder(self._parallel_calls)
        return self._builders[index]

    def _choice(self, index: int, outputs: Sequence[TokenOutput], message: JSON) -> JSON:
        finish = outputs[-1].finish
        logprobs = chat_logprobs(self.tokenizer, outputs)
        reason = finish and self._builder(index).finish_reason(finish.reason)
        return {"index": index, **message, "logprobs": logprobs, "finish_reason": reason}
