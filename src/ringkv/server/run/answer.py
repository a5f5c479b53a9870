"""Runs the requests of one HTTP call and returns one JSON body or an event stream.

Chats and completions differ only in their `Formatter`.
"""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, ClassVar

from fastapi import Request as HTTPRequest
from fastapi import Response
from fastapi.responses import JSONResponse

from ringkv.base.request import Request
from ringkv.server.protocol.keys import caller_of
from ringkv.server.protocol.scope import ARRIVED, MODEL, USAGE_COUNTER
from ringkv.server.protocol.stream import START, STOP, EventStream, one_line, until_disconnected
from ringkv.server.run.admission import admitted, sent_by
from ringkv.server.run.generation import OutputProcessor, OutputStream, TokenOutput, generate
from ringkv.server.run.metrics import Meter
from ringkv.server.run.schemas import ChoicesBody, GenerationBody, StreamOptions
from ringkv.server.run.serving import Serving
from ringkv.server.run.usage import UsageCounter
from ringkv.text.answers.answer_stream import AnswerStream
from ringkv.text.answers.reader import Reader
from ringkv.text.tokenizer import Tokenizer

JSON = dict[str, Any]


class Formatter:
    """Formats one answer of an endpoint.

    answer_object, chunk_object: the field `object` of the answer, and of each chunk of a stream. continues: the text
    continues its prompt, so it keeps a leading space.
    """

    answer_object: ClassVar[str]
    chunk_object: ClassVar[str]
    continues: ClassVar[bool]

    def __init__(self, id: str, model: str, tokenizer: Tokenizer) -> None:
        self.id, self._model, self.tokenizer, self._created = id, model, tokenizer, int(time.time())

    def head(self, name: str) -> JSON:
        """Return the first fields of an answer or a chunk, whose `object` has this name."""
        return {"id": self.id, "object": name, "created": self._created, "model": self._model}

    def reader(self) -> Reader:
        """Return a new reader of an answer's parts; all text is content unless an endpoint says otherwise."""
        return Reader()

    def complete(self, index: int, outputs: Sequence[TokenOutput]) -> JSON:
        """Return the choice at `index` of an answer that is not streamed."""
        raise NotImplementedError

    def choice(self, index: int, output: TokenOutput) -> JSON:
        """Return a chunk's choice, for one token of the choice at `index`."""
        return self.complete(index, [output])

    def usage(self, usage: JSON) -> JSON:
        """Return the usage, once all choices were formatted."""
        return usage


async def answer(
    serving: Serving, http: HTTPRequest, body: ChoicesBody, requests: Sequence[Sequence[Request]], formatter: Formatter
) -> Response:
    """Run all requests concurrently. `requests` has one group per prompt and one request per choice."""
    outputs, counter = start(serving, http, requests, formatter.reader, formatter.continues)
    if body.stream:
        return EventStream(chunks(outputs, formatter, counter, body.stream_options or StreamOptions()))
    work = collect(outputs, formatter, counter, sum(map(len, requests)), body)
    return JSONResponse(await until_disconnected(http.receive, work))


def start(
    serving: Serving,
    http: HTTPRequest,
    requests: Sequence[Sequence[Request]],
    reader: Callable[[], Reader],
    continues: bool,
) -> tuple[OutputStream, UsageCounter]:
    """Return the stream of all choices' outputs, and their usage counter. reader, continues: as in `Formatter`."""

    def processor(request: Request, is_first: bool) -> OutputProcessor:
        detokenizer, sampling = serving.tokenizer.detokenizer(continues=continues), request.sampling
        stream = AnswerStream(detokenizer, sampling.stop, sampling.min_tokens, reader())
        return OutputProcessor(request, stream, Meter(serving.metrics, http.scope[ARRIVED], is_first))

    prompt_tokens = sum(len(group[0].tokens) for group in requests)
    caller, passed = caller_of(http.scope), time.perf_counter() - http.scope[ARRIVED]
    requests = [
        [replace(sent_by(caller.label, request, passed), salt=caller.salt(request.salt)) for request in group]
        for group in requests
    ]
    outputs = generate(
        serving.engine, [[processor(request, request is group[0]) for request in group] for group in requests]
    )
    http.scope[MODEL] = serving.names[0]
    counter = http.scope[USAGE_COUNTER] = UsageCounter(prompt_tokens, len(requests[0]))
    return admitted(serving.admission, requests, outputs), counter


async def collect(
    outputs: OutputStream, formatter: Formatter, counter: UsageCounter, count: int, body: ChoicesBody
) -> JSON:
    """Return the body of a non-streamed answer, once all `count` choices are finished."""
    choices: list[list[TokenOutput]] = [[] for _ in range(count)]
    async with aclosing(outputs):
        async for batch in outputs:
            for index, output in batch:
                counter.add(index, output)
                choices[index].append(output)
    formatted = [formatter.complete(index, outputs) for index, outputs in enumerate(best(choices, body))]
    return formatter.head(formatter.answer_object) | {"choices": formatted, "usage": formatter.usage(counter.usage())}


def best(choices: Sequence[Sequence[TokenOutput]], body: GenerationBody) -> list[Sequence[TokenOutput]]:
    """Return the `n` of each prompt's `best_of` answers with the highest mean log-probability, best first."""
    per_prompt = body.answers
    if per_prompt == body.choices:
        return list(choices)
    groups = (choices[first : first + per_prompt] for first in range(0, len(choices), per_prompt))
    kept = [choice for group in groups for choice in sorted(group, key=_mean_logprob, reverse=True)[: body.choices]]
    return kept if body.logprob_count is not None else [[replace(o, logprob=None) for o in choice] for choice in kept]


def _mean_logprob(outputs: Sequence[TokenOutput]) -> float:
    values = [output.logprob.logprob for output in outputs if output.logprob is not None]
    return sum(values) / max(1, len(values))


async def chunks(
    outputs: OutputStream, formatter: Formatter, counter: UsageCounter, options: StreamOptions
) -> AsyncGenerator[bytes, None]:
    """Yield events with one chunk per output, those of a batch joined.

    With `include_usage` each chunk has `usage: null`, as OpenAI's do, or the usage so far.
    """
    envelope = Envelope(formatter.head(formatter.chunk_object))
    rest: JSON = {"usage": None} if options.include_usage else {}

    def event(index: int, output: TokenOutput) -> bytes:
        counter.add(index, output)
        usage = {"usage": counter.usage()} if options.continuous_usage_stats else rest
        return envelope.event(formatter.choice(index, output), usage)

    async with aclosing(outputs):
        async for batch in outputs:
            yield b"".join([event(index, output) for index, output in batch])
    if options.include_usage:
        yield envelope.event(None, {"usage": formatter.usage(counter.usage())})


class Envelope:
    """The fields that all chunks of a streamed answer have, encoded once. fields: those before `choices`."""

    def __init__(self, fields: JSON) -> None:
        self._head = START + one_line(fields).removesuffix(b"}") + b',"choices":['

    def event(self, choice: JSON | None, rest: JSON) -> bytes:
        """Return the event of a chunk with one choice, or none, and the fields after `choices`."""
        encoded = b"" if choice is None else one_line(choice)
        return self._head + encoded + (b"]," + one_line(rest)[1:] if rest else b"]}") + STOP
