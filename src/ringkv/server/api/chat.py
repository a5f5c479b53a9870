"""POST /v1/chat/completions."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Literal

from fastapi import APIRouter, Response
from fastapi import Request as HTTPRequest

from ringkv.server.api.documents import Answer, Document, FinishReason, answers
from ringkv.server.api.logprobs import ChatLogprobs, chat_logprobs
from ringkv.server.api.message_builder import ChatMessage, MessageBuilder
from ringkv.server.run.answer import JSON, ChoicesFormatter, Formatter, answer
from ringkv.server.run.generation import TokenOutput
from ringkv.server.run.grammars import grammar_of
from ringkv.server.run.refusals import OF_COMPLETIONS, refuse_unsupported, refuse_unsupported_messages
from ringkv.server.run.rendered_chat import RenderedChat
from ringkv.server.run.requests import build_requests
from ringkv.server.run.schemas import ChatBody, GenerationBody
from ringkv.server.run.serving import Models, Serving

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
        longest = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        return await answer_chat(serving, http, body, rendered, longest, ChatFormatter(serving, body, rendered))

    return router


async def answer_chat(
    serving: Serving,
    http: HTTPRequest,
    body: GenerationBody,
    rendered: RenderedChat,
    longest: int | None,
    formatter: Formatter,
) -> Response:
    """Answer a rendered chat.

    longest: tokens of the answer; by default those that the model's context leaves, at most `DEFAULT_MAX_TOKENS`.
    """
    grammar = await grammar_of(serving, http, body, rendered)
    left = serving.engine.limits.context - len(rendered.prompt)
    max_tokens = max(1, min(DEFAULT_MAX_TOKENS, left)) if longest is None else longest
    requests = build_requests(
        serving, formatter.id, body, [rendered.prompt], max_tokens, rendered.system_tokens, grammar
    )
    return await answer(serving, http, body, requests, formatter)


class ChatFormatter(ChoicesFormatter):
    answer_object, chunk_object = "chat.completion", "chat.completion.chunk"

    def __init__(self, serving: Serving, body: ChatBody, rendered: RenderedChat) -> None:
        super().__init__("chatcmpl-", serving, body, rendered.reader)
        new_builder = partial(MessageBuilder, body.parallel_tool_calls is not False)
        self._builders: defaultdict[int, MessageBuilder] = defaultdict(new_builder)  # by index of a choice

    def choice(self, index: int, outputs: Sequence[TokenOutput]) -> JSON:
        return self._choice(index, outputs, {"message": self._builders[index].complete(outputs)})

    def chunk_choice(self, index: int, output: TokenOutput) -> JSON:
        # The role comes with the first token: clients would count a delta of its own as that token.
        role = {"role": "assistant"} if output.is_first else {}
        return self._choice(index, [output], {"delta": role | self._builders[index].delta(output)})

    def usage(self, usage: JSON) -> JSON:
        """Add the number of reasoning tokens, if there are any."""
        reasoning_tokens = sum(builder.reasoning_tokens for builder in self._builders.values())
        if not reasoning_tokens:
            return usage
        details = usage.get("completion_tokens_details", {}) | {"reasoning_tokens": reasoning_tokens}
        return usage | {"completion_tokens_details": details}

    def _choice(self, index: int, outputs: Sequence[TokenOutput], message: JSON) -> JSON:
        finish = outputs[-1].finish
        logprobs = chat_logprobs(self._tokenizer, outputs)
        reason = finish and self._builders[index].finish_reason(finish.reason)
        return {"index": index, **message, "logprobs": logprobs, "finish_reason": reason}
