"""POST /v1/completions."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from fastapi import APIRouter, Response
from fastapi import Request as HTTPRequest

from ringkv.base.errors import InvalidRequest
from ringkv.server.api.documents import Answer, Document, FinishReason, answers
from ringkv.server.api.logprobs import CompletionLogprobs, completion_logprobs
from ringkv.server.run.answer import JSON, ChoicesFormatter, answer
from ringkv.server.run.generation import TokenOutput
from ringkv.server.run.grammars import grammar_of
from ringkv.server.run.refusals import refuse_unsupported
from ringkv.server.run.requests import build_requests, check_count, check_prompt
from ringkv.server.run.schemas import CompletionBody
from ringkv.server.run.serving import Models, Serving
from ringkv.text.answers.spans import Content
from ringkv.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16  # OpenAI's


class CompletionChoice(Document):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class Completion(Answer):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


def completions_router(models: Models) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/completions", summary="Complete a text", responses=answers(Completion))
    async def complete(body: CompletionBody, http: HTTPRequest) -> Response:
        serving = models.find(body.model)
        refuse_unsupported(body)
        check_best_of(body)
        prompts = await asyncio.to_thread(encode_prompts, serving, body)
        grammar = await grammar_of(serving, http, body)
        formatter = CompletionFormatter(serving, body)
        max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        prompt_logprobs = body.logprobs if body.echo else None
        requests = build_requests(
            serving, formatter.id, body, prompts, max_tokens, grammar=grammar, prompt_logprobs=prompt_logprobs
        )
        if body.echo:
            formatter.echoes = await asyncio.to_thread(lambda: [Echo(prompt, serving.tokenizer) for prompt in prompts])
        return await answer(serving, http, body, requests, formatter)

    return router


def encode_prompts(serving: Serving, body: CompletionBody) -> list[Sequence[int]]:
    """Return each prompt's token ids. Raises PromptTooLong at the first that does not fit, and tokenises no further."""
    check_count(len(body.prompt), body)
    limits, tokenizer = serving.engine.limits, serving.tokenizer

    def encode(prompt: str) -> Sequence[int]:
        tokenizer.check_length(prompt, limits.longest_prompt, body.prompt_field)
        tokens = tokenizer.encode(prompt, add_special_tokens=body.add_special_tokens is not False)
        check_prompt(tokens, limits, body.prompt_field)
        return tokens

    return [encode(prompt) if isinstance(prompt, str) else prompt for prompt in body.prompt]


class Echo:
    """One prompt as token outputs. Special tokens are shown, except a leading beginning-of-sequence token."""

    def __init__(self, prompt: Sequence[int], tokenizer: Tokenizer) -> None:
        self._outputs: list[TokenOutput] = []
        detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
        self._length = 0
        for token in prompt:
            is_bos = not self._outputs and token == tokenizer.bos_id
            text = "" if is_bos else detokenizer.push(token)
            self._outputs.append(TokenOutput(token, [Content(text)], self._length, is_first=False))
            self._length += len(text)
        if self._outputs and (rest := detokenizer.finish()):
            self._outputs[-1] = replace(self._outputs[-1], parts=[*self._outputs[-1].parts, Content(rest)])
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
        pairs = zip(self._outputs, values, strict=True)
        return [*(replace(output, logprob=value) for output, value in pairs), *shifted]


def check_best_of(body: CompletionBody) -> None:
    if body.best_of is not None and body.best_of < body.choices:
        raise InvalidRequest(f"best_of is {body.best_of}; it must be at least n ({body.choices})", "best_of")
    if body.stream and body.answers > body.choices:
        raise InvalidRequest(
            f"best_of is {body.best_of}, which cannot be streamed: the best answers are known only when all "
            f"{body.answers} are finished; send the request without stream",
            "best_of",
        )


class CompletionFormatter(ChoicesFormatter):
    answer_object = chunk_object = "text_completion"
    continues = True

    def __init__(self, serving: Serving, body: CompletionBody) -> None:
        super().__init__("cmpl-", serving, body)
        self._per_prompt = body.choices
        self.echoes: list[Echo] = []  # put before the answers to their prompts; empty without `echo`

    def choice(self, index: int, outputs: Sequence[TokenOutput]) -> JSON:
        finish = outputs[-1].finish
        if self.echoes:
            outputs = self.echoes[index // self._per_prompt].before(outputs)
        return {
            "index": index,
            "text": "".join(output.text for output in outputs),
            "logprobs": completion_logprobs(self._tokenizer, outputs),
            "finish_reason": finish and finish.reason,
        }
