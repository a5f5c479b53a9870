"""POST /tokenize and /detokenize, GET /tokenizer_info: tokenization for clients without a tokenizer."""

import asyncio
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from ringkv.base.errors import InvalidRequest, PromptTooLong
from ringkv.server.api.documents import errors
from ringkv.server.run.rendered_chat import RenderedChat
from ringkv.server.run.requests import check_tokens
from ringkv.server.run.schemas import ChatBody, SentMessage, SentTool
from ringkv.server.run.serving import Models, Serving

LONGEST_TEXT, TEXT_PER_TOKEN = 1 << 20, 16  # characters to tokenise at a time, if the longest prompt is not longer
CLASS = "PreTrainedTokenizerFast"  # transformers' class for a tokenizer.json


class TokenizeBody(BaseModel):
    """A text, or a conversation that the chat template renders."""

    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"prompt": "The sea is"}]})

    model: str | None = None
    prompt: str | None = None
    messages: list[SentMessage] | None = None
    tools: list[SentTool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class Tokenized(BaseModel):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class DetokenizeBody(BaseModel):
    model_config = ConfigDict(strict=True, json_schema_extra={"examples": [{"tokens": [504, 3732, 314]}]})

    model: str | None = None
    tokens: list[int]


class Detokenized(BaseModel):
    prompt: str


class TokenizerInfo(BaseModel):
    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None


def tokens_router(models: Models) -> APIRouter:
    router = APIRouter()

    @router.post("/tokenize", summary="Split a text or a chat into tokens", responses=errors(400, 404, 413))
    async def tokenize(body: TokenizeBody) -> Tokenized:
        serving = models.find(body.model)
        tokens = await asyncio.to_thread(encode, serving, body)
        texts = await asyncio.to_thread(token_texts, serving, tokens) if body.return_token_strs else None
        limit = serving.engine.limits.longest_prompt + 1
        return Tokenized(tokens=list(tokens), count=len(tokens), max_model_len=limit, token_strs=texts)

    @router.post("/detokenize", summary="Join tokens to a text", responses=errors(400, 404, 413))
    async def detokenize(body: DetokenizeBody) -> Detokenized:
        return Detokenized(prompt=await asyncio.to_thread(decode, models.find(body.model), body))

    @router.get("/tokenizer_info", summary="Describe the tokenizer", responses=errors(404))
    async def tokenizer_info(model: str | None = None) -> TokenizerInfo:
        serving = models.find(model)
        tokenizer, template = serving.tokenizer, serving.template
        return TokenizerInfo(
            tokenizer_class=CLASS,
            bos_token=_text(serving, tokenizer.bos_id),
            eos_token=tokenizer.special.get("eos_token") or _text(serving, next(iter(tokenizer.eos_ids), None)),
            pad_token=tokenizer.special.get("pad_token"),
            chat_template=template.default if template else None,
        )

    return router


def encode(serving: Serving, body: TokenizeBody) -> Sequence[int]:
    special = body.add_special_tokens is not False
    longest = max(LONGEST_TEXT, TEXT_PER_TOKEN * serving.engine.limits.longest_prompt)
    match body.prompt, body.messages:
        case str(text), None:
            _check_characters(len(text), longest, "prompt")
            return serving.tokenizer.encode(text, add_special_tokens=special)
        case None, [_, *_] as messages:
            _check_characters(sum(len(str(message)) for message in messages), longest, "messages")
            chat = ChatBody(messages=messages, tools=body.tools, chat_template_kwargs=body.chat_template_kwargs)
            return RenderedChat.of(serving, chat, longest, answers=False).prompt
    raise InvalidRequest("send either a prompt or messages", "prompt")


def _check_characters(characters: int, longest: int, field: str) -> None:
    """Refuse a text that would take gigabytes. No other bound holds for texts that are only counted."""
    if characters > longest:
        raise PromptTooLong(
            f"{field} has {characters:,} characters; {longest:,} are tokenised at a time, so send it in parts", field
        )


def token_texts(serving: Serving, tokens: Sequence[int]) -> list[str]:
    """Return texts that join to the whole text. A code point that several tokens share is in the text of the last."""
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    parts = map(serving.tokenizer.token_bytes, tokens)
    return [decoder.decode(part, final=place == len(tokens)) for place, part in enumerate(parts, 1)]


def decode(serving: Serving, body: DetokenizeBody) -> str:
    check_tokens(body.tokens, serving.engine.limits.vocab, "tokens")
    return serving.tokenizer.decode(body.tokens, skip_special_tokens=False)


def _text(serving: Serving, token: int | None) -> str | None:
    return None if token is None else serving.tokenizer.decode([token], skip_special_tokens=False)
