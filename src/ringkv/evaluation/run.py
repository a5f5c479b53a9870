"""run: prompts to records, through the scheduler and the graphs that serve users.

Each prompt is prefilled once and compressed for each of its cells; all decode together, and beside other prompts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ringkv.base.engine import Engine
from ringkv.base.events import Event, Failed, Finished, Token
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.evaluation.cells import Cell
from ringkv.evaluation.journal import Record
from ringkv.evaluation.sample import Answer
from ringkv.evaluation.work import Work
from ringkv.scheduler.loop import Loop
from ringkv.text.tokenizer import Tokenizer

AHEAD = 2  # prompts submitted and not answered by anybody yet


@dataclass
class _Open:
    """A request that is being answered."""

    work: Work
    cell: Cell
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Run:
    """Greedy, so that the same work gives the same records."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._loop, self._tokenizer = Loop(engine), tokenizer
        self._open: dict[str, _Open] = {}

    def records(self, works: Sequence[Work]) -> Iterator[Record]:
        """One for each prompt and cell, as they are answered. A cell that cannot be is recorded with the reason."""
        waiting = iter(enumerate(works))
        is_left = True
        while is_left or self._open:
            while is_left and len({id(one.work) for one in self._open.values() if not one.tokens}) < AHEAD:
                following = next(waiting, None)
                is_left = following is not None
                if following is not None:
                    yield from self._take(self._submit(*following))
            yield from self._take(self._loop.step())

    def _submit(self, number: int, work: Work) -> Sequence[Event]:
        requests = [self._request(f"{number}/{place}", work, cell) for place, cell in enumerate(work.cells)]
        for request, cell in zip(requests, work.cells, strict=True):
            self._open[request.id] = _Open(work, cell)
        return self._loop.submit(*requests)

    def _request(self, name: str, work: Work, cell: Cell) -> Request:
        sampling = SamplingParams(max_tokens=work.output, temperature=0.0, logprobs=0 if work.task.is_loss else None)
        prompt = work.prompt
        return Request(name, prompt.tokens, sampling, work.choice(cell), self._tokenizer.eos_ids, prompt.forced)

    def _take(self, events: Sequence[Event]) -> Iterator[Record]:
        for event in events:
            one = self._open[event.request_id]
            match event:
                case Token():
                    one.tokens.append(event.token)
                    if event.logprob is not None:
                        one.logprobs.append(event.logprob.logprob)
                case Finished():
                    yield self._ended(self._open.pop(event.request_id), event)
                case Failed():
                    yield self._failure(self._open.pop(event.request_id), event.message)

    def _ended(self, one: _Open, event: Finished) -> Record:
        """A cache that is full before all that follows the prompt was fed has no answer to be scored."""
        fed, given = len(one.tokens), len(one.work.prompt.forced)
        if fed < given:
            return self._failure(
                one, f"the cache was full after {fed:,} of the {given:,} tokens that follow the prompt"
            )
        return self._record(one, event)

    def _failure(self, one: _Open, reason: str) -> Record:
        digest, facts = one.work.prompt.digest, one.work.sample.facts
        return Record(*one.work.key(one.cell), score=None, prompt=digest, error=reason, facts=facts)

    def _record(self, one: _Open, event: Finished) -> Record:
        work, given = one.work, len(one.work.prompt.forced)
        answer = Answer(self._tokenizer.decode(one.tokens[given:]), tuple(one.logprobs))
        return Record(
            *work.key(one.cell),
            score=work.task.score(answer, work.sample),
            prompt=work.prompt.digest,
            text=answer.text,
            prompt_tokens=event.usage.prompt_tokens,
            kept=event.usage.kv.kept,
            output_tokens=len(one.tokens) - given,
            ring_wraps=event.usage.kv.ring_wraps,
            finish=event.reason,
            facts=work.sample.facts,
            logprobs=tuple(answer.logprobs),
        )
