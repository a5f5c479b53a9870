"""POST /v1/completions."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar
from uuid import uuid4

from fastapi import APIRouter, Response
from fastapi import Request as HTTPRequest

from ringkv.base.errors import InvalidRequest
from ringkv.server.answer import JSON, answer
from ringkv.server.documents import Completion, answers
from ringkv.server.echo import Echo
from ringkv.server.generation import TokenOutput
from ringkv.server.grammars import grammar_of
from ringkv.server.logprobs import completion_logprobs
from ringkv.server.refusals import refuse_unsupported
from ringkv.server.requests import build_requests, check_count, check_prompt
from ringkv.server.schemas import CompletionBody
from ringkv.server.serving import Models, Serving
from ringkv.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16  # OpenAI's


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
