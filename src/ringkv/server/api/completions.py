"""POST /v1/completions."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal
from uuid import uuid4

from fastapi import APIRouter, Response
from fastapi import Request as HTTPRequest

from ringkv.base.errors import InvalidRequest
from ringkv.server.api.documents import Document, FinishReason, Usage, answers
from ringkv.server.api.logprobs import CompletionLogprobs, completion_logprobs
from ringkv.server.run.answer import JSON, answer
from ringkv.server.run.generation import TokenOutput
from ringkv.server.run.grammars import grammar_of
from ringkv.server.run.refusals import refuse_unsupported
from ringkv.server.run.requests import build_requests, check_count, check_prompt
from ringkv.server.run.schemas import CompletionBody
from ringkv.server.run.serving import Models, Serving
from ringkv.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16  # OpenAI's


class CompletionChoice(Document):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class Completion(Document):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


def completions_router(models: Models) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/completions", responses=answers(Completion))
    async def complete(body: CompletionBody, http: HTTPRequest) -> Response:
        serving = models.find(body.model)
        model = serving.name(body.model)
        refuse_unsupported(body)
        check_best_of(body)
        prompts = await asyncio.to_thread(encode_prompts, serving, body)
        grammar = await grammar_of(serving, http, body)
        answer_id = f"cmpl-{uuid4().hex}"
        max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        prompt_logprobs = body.logprobs if body.echo else None
        requests = build_requests(
            serving, answer_id, body, prompts, max_tokens, grammar=grammar, prompt_logprobs=prompt_logprobs
        )
        echoed = await asyncio.to_thread(echoes, serving.tokenizer, prompts) if body.echo else ()
        formatter = CompletionFormatter(answer_id, int(time.time()), model, serving.tokenizer, echoed, body.choices)
        return await answer(serving, http, body, requests, formatter)

    return router


def encode_prompts(serving: Serving, body: CompletionBody) -> list[Sequence[int]]:
    """Return each prompt's token ids. Raises PromptTooLong at the first that does not fit, and tokenises no further."""
    check_count(len(body.prompt), body)
    return [_encode(serving, body, prompt) if isinstance(prompt, str) else prompt for prompt in body.prompt]


def _encode(serving: Serving, body: CompletionBody, prompt: str) -> Sequence[int]:
    limits = serving.engine.limits
    serving.tokenizer.check_length(prompt, limits.longest_prompt, body.prompt_field)
    tokens = serving.tokenizer.encode(prompt, add_special_tokens=body.add_special_tokens is not False)
    check_prompt(tokens, limits, body.prompt_field)
    return tokens


class Echo:
    """One prompt as token outputs. Special tokens are shown, except a leading beginning-of-sequence token."""

    def __init__(self, prompt: Sequence[int], tokenizer: Tokenizer) -> None:
        self._outputs: list[TokenOutput] = []
        detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
        self._length = 0
        for token in prompt:
            is_bos = not self._outputs and token == tokenizer.bos_id
            text = "" if is_bos else detokenizer.push(token)
            self._outputs.append(TokenOutput(token, text, self._length, is_first=False))
            self._length += len(text)
        if self._outputs and (rest := detokenizer.finish()):
            self._outputs[-1] = replace(self._outputs[-1], text=self._outputs[-1].text + rest)
            self._length += len(rest)

    def before(self, outputs: Sequence[TokenOutput]) -> list[TokenOutput]:
        """Shift the outputs' offsets by the prompt's length, and put the prompt before a choice's first output.

        The prompt's first token has no log-probability.
        """
        shifted = [replace(output, offset=output.offset + self._length) for output in outputs]
        if not outputs[0].is_first:
            return shifted
        prompt_logprobs = outputs[0].prompt_logprobs
        values = [None, *prompt_logprobs] if prompt_logprobs else [None] * len(self._outputs)
        return [*(replace(one, logprob=value) for one, value in zip(self._outputs, values, strict=True)), *shifted]


def echoes(tokenizer: Tokenizer, prompts: Sequence[Sequence[int]]) -> list[Echo]:
    return [Echo(prompt, tokenizer) for prompt in prompts]


def check_best_of(body: CompletionBody) -> None:
    if body.best_of is not None and body.best_of < body.choices:
        raise InvalidRequest(f"best_of is {body.best_of}; it must be at least n ({body.choices})", "best_of")
    if body.stream and body.answers > body.choices:
        raise InvalidRequest(
            f"best_of is {body.best_of}, which cannot be streamed: the best answers are known only when all "
            f"{body.answers} are finished; send the request without stream",
            "best_of",
        )


@dataclass(frozen=True)
class CompletionFormatter:
    """echoed: prompts to put before their answers, `per_prompt` choices each; empty without `echo`."""

    id: str
    created: int
    model: str
    tokenizer: Tokenizer
    echoed: Sequence[Echo] = ()
    per_prompt: int = 1
    continues: ClassVar[bool] = True

    @property
    def head(self) -> JSON:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}

    def complete(self, choices: Sequence[Sequence[TokenOutput]], usage: JSON) -> JSON:
        return self.head | {"choices": [self._choice(*one) for one in enumerate(choices)], "usage": usage}

    def choice(self, index: int, output: TokenOutput) -> JSON:
        return self._choice(index, [output])

    def usage(self, usage: JSON) -> JSON:
        return usage

    def _choice(self, index: int, outputs: Sequence[TokenOutput]) -> JSON:
        finish = outputs[-1].finish
        if self.echoed:
            outputs = self.echoed[index // self.per_prompt].before(outputs)
        return {
            "index": index,
            "text": "".join(output.text for output in outputs),
            "logprobs": completion_logprobs(self.tokenizer, outputs),
            "finish_reason": finish and finish.reason,
        }
