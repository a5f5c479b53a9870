"""Runs the requests of one HTTP call and returns one JSON body or an event stream.

Endpoints differ only in their `Formatter`.
"""

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any, ClassVar
from uuid import uuid4

from fastapi import Request as HTTPRequest
from fastapi import Response
from fastapi.responses import JSONResponse

from ringkv.base.request import Request
from ringkv.server.protocol.errors import body_of
from ringkv.server.protocol.keys import caller_of
from ringkv.server.protocol.scope import ARRIVED, MODEL, USAGE_COUNTER
from ringkv.server.protocol.stream import COMMENT, DONE, START, STOP, EventStream, event, one_line, until_disconnected
from ringkv.server.run.admission import admitted, sent_by
from ringkv.server.run.generation import OutputProcessor, OutputStream, TokenOutput, generate
from ringkv.server.run.metrics import Meter
from ringkv.server.run.schemas import ChoicesBody, GenerationBody, StreamOptions
from ringkv.server.run.serving import Serving
from ringkv.server.run.usage import UsageCounter
from ringkv.text.answers.answer_stream import AnswerStream
from ringkv.text.answers.reader import Reader

JSON = dict[str, Any]


class Formatter:
    """Formats one answer of an endpoint, once.

    continues: the text continues its prompt, so it keeps a leading space. done: what ends a stream.
    """

    continues: ClassVar[bool] = False
    done: ClassVar[bytes] = b""

    def __init__(
        self, prefix: str, serving: Serving, body: GenerationBody, reader: Callable[[], Reader] = Reader
    ) -> None:
        """prefix: of the answer's id. reader: makes a reader of an answer's parts; by default all text is content."""
        self.id, self.reader, self._created = prefix + uuid4().hex, reader, int(time.time())
        self._model, self._tokenizer, self._body = body.model or serving.names[0], serving.tokenizer, body

    async def complete(self, stream: OutputStream, counter: UsageCounter) -> JSON:
        """Return the body of an answer that is not streamed, once all choices are finished."""
        raise NotImplementedError

    def events(self, stream: OutputStream, counter: UsageCounter) -> AsyncGenerator[bytes, None]:
        """Yield the events of a streamed answer, those of a batch of outputs joined."""
        raise NotImplementedError

    def error(self, error: Exception) -> bytes:
        """Return the event of an error that comes after the first event."""
        return event(body_of(error))


async def answer(
    serving: Serving,
    http: HTTPRequest,
    body: GenerationBody,
    requests: Sequence[Sequence[Request]],
    formatter: Formatter,
) -> Response:
    """Run all requests concurrently. `requests` has one group per prompt and one request per choice."""

    def processor(request: Request, is_first: bool) -> OutputProcessor:
        detokenizer, sampling = serving.tokenizer.detokenizer(continues=formatter.continues), request.sampling
        stream = AnswerStream(detokenizer, sampling.stop, sampling.min_tokens, formatter.reader())
        return OutputProcessor(request, stream, Meter(serving.metrics, http.scope[ARRIVED], is_first))

    prompt_tokens = sum(len(group[0].tokens) for group in requests)
    caller, passed = caller_of(http.scope), time.perf_counter() - http.scope[ARRIVED]
    requests = [
        [replace(sent_by(caller.label, request, passed), salt=caller.salt(request.salt)) for request in group]
        for group in requests
    ]
    processors = [[processor(request, request is group[0]) for request in group] for group in requests]
    outputs = admitted(serving.admission, requests, generate(serving.engine, processors))
    http.scope[MODEL] = serving.names[0]
    counter = http.scope[USAGE_COUNTER] = UsageCounter(prompt_tokens, len(requests[0]))
    if body.stream:
        waiting = prefill_comments(serving, {request.id for group in requests for request in group})
        return EventStream(formatter.events(outputs, counter), formatter.done, formatter.error, waiting)
    return JSONResponse(await until_disconnected(http.receive, formatter.complete(outputs, counter)))


@contextmanager
def prefill_comments(serving: Serving, ids: Collection[str]) -> Iterator[Callable[[], bytes]]:
    """Give a function that returns a comment for streams: the prefilled tokens of these requests' prompts in lanes."""

    def comment() -> bytes:
        prompts = [prompt for prompt in serving.engine.slots().prompts if prompt.id in ids]
        done, total = (sum(getattr(prompt, name) for prompt in prompts) for name in ("prefilled", "tokens"))
        return f": prefill {done} of {total}\n\n".encode() if prompts else COMMENT

    serving.engine.watch(True)
    try:
        yield comment
    finally:
        serving.engine.watch(False)


async def collected(stream: OutputStream, counter: UsageCounter) -> list[list[TokenOutput]]:
    """Return the outputs of each choice, once all are finished."""
    choices: defaultdict[int, list[TokenOutput]] = defaultdict(list)
    async with aclosing(stream):
        async for batch in stream:
            for index, output in batch:
                counter.add(index, output)
                choices[index].append(output)
    return [choice for _, choice in sorted(choices.items())]


class ChoicesFormatter(Formatter):
    """Formats chats and completions, whose answers have choices.

    answer_object, chunk_object: the field `object` of the answer, and of each chunk of a stream.
    """

    answer_object: ClassVar[str]
    chunk_object: ClassVar[str]
    done = DONE
    _body: ChoicesBody

    def choice(self, index: int, outputs: Sequence[TokenOutput]) -> JSON:
        """Return the choice at `index` of an answer that is not streamed."""
        raise NotImplementedError

    def chunk_choice(self, index: int, output: TokenOutput) -> JSON:
        """Return a chunk's choice, for one token of the choice at `index`."""
        return self.choice(index, [output])

    def usage(self, usage: JSON) -> JSON:
        """Return the usage, once all choices were formatted."""
        return usage

    async def complete(self, stream: OutputStream, counter: UsageCounter) -> JSON:
        choices = best(await collected(stream, counter), self._body)
        formatted = [self.choice(index, choice) for index, choice in enumerate(choices)]
        return self._head(self.answer_object) | {"choices": formatted, "usage": self.usage(counter.usage())}

    async def events(self, stream: OutputStream, counter: UsageCounter) -> AsyncGenerator[bytes, None]:
        """Yield a chunk for each output.

        With `include_usage` each chunk has `usage: null`, as OpenAI's do, or the usage so far.
        """
        options = self._body.stream_options or StreamOptions()
        head = START + one_line(self._head(self.chunk_object)).removesuffix(b"}") + b',"choices":['  # encoded once
        absent: JSON = {"usage": None} if options.include_usage else {}

        def chunk(choice: bytes, rest: JSON) -> bytes:
            return head + choice + (b"]," + one_line(rest)[1:] if rest else b"]}") + STOP

        def chunk_of(index: int, output: TokenOutput) -> bytes:
            counter.add(index, output)
            usage = {"usage": counter.usage()} if options.continuous_usage_stats else absent
            return chunk(one_line(self.chunk_choice(index, output)), usage)

        async with aclosing(stream):
            async for batch in stream:
                yield b"".join([chunk_of(index, output) for index, output in batch])
        if options.include_usage:
            yield chunk(b"", {"usage": self.usage(counter.usage())})

    def _head(self, name: str) -> JSON:
        """Return the first fields of an answer or a chunk, whose `object` has this name."""
        return {"id": self.id, "object": name, "created": self._created, "model": self._model}


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
