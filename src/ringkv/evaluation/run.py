"""run: turns prompts into records, through the scheduler and graphs that serve users.

Each prompt is prefilled once and compressed for each of its cells. All cells decode together, in one batch with other
prompts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ringkv.base.engine import Engine
from ringkv.base.events import Event, Failed, Finished, Token
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.evaluation.cells import Cell
from ringkv.evaluation.journal import Record
from ringkv.evaluation.pending import UnansweredPrompt
from ringkv.evaluation.sample import Answer
from ringkv.scheduler.loop import Loop
from ringkv.text.tokenizer import Tokenizer

AHEAD = 2  # submitted prompts without an output token


@dataclass
class _Open:
    """A running request. next_turns: if it is a first turn, its next turn, and those of cells that have not begun."""

    item: UnansweredPrompt
    cell: Cell
    next_turns: Sequence[tuple[Request, Cell]] = ()
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Runner:
    """Runs prompts with greedy sampling, so that the same prompts give the same records."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._loop, self._tokenizer = Loop(engine), tokenizer
        self._open: dict[str, _Open] = {}

    def records(self, pending: Sequence[UnansweredPrompt]) -> Iterator[Record]:
        """Yield a record for each prompt and cell as it finishes. A cell that fails is recorded with the reason."""
        waiting = iter(enumerate(pending))
        has_more = True
        while has_more or self._open:
            while has_more and len({id(one.item) for one in self._open.values() if not one.tokens}) < AHEAD:
                following = next(waiting, None)
                has_more = following is not None
                if following is not None:
                    yield from self._take(self._submit(*following))
            yield from self._take(self._loop.step())

    def _submit(self, number: int, item: UnansweredPrompt) -> Sequence[Event]:
        requests = [self._request(f"{number}/{place}", item, cell) for place, cell in enumerate(item.cells)]
        if item.prompt.following:
            return self._begin(item, list(zip(requests, item.cells, strict=True)))
        for request, cell in zip(requests, item.cells, strict=True):
            self._open[request.id] = _Open(item, cell)
        return self._loop.submit(*requests)

    def _begin(self, item: UnansweredPrompt, next_turns: Sequence[tuple[Request, Cell]]) -> Sequence[Event]:
        """Submit the first turn of the first of these. The prefix store has its prompt for those that follow."""
        if not next_turns:
            return []
        request, cell = next_turns[0]
        first = _first_turn(request, item)
        self._open[first.id] = _Open(item, cell, next_turns)
        return self._loop.submit(first)

    def _request(self, name: str, item: UnansweredPrompt, cell: Cell) -> Request:
        sampling = SamplingParams(max_tokens=item.output, temperature=0.0, logprobs=0 if item.task.is_loss else None)
        prompt, eos = item.prompt, self._tokenizer.eos_ids
        return Request(name, prompt.whole, sampling, item.choice(cell), eos, prompt.forced, salt=item.salt)

    def _take(self, events: Sequence[Event]) -> Iterator[Record]:
        for event in events:
            one = self._open[event.request_id]
            match event:
                case Token():
                    one.tokens.append(event.token)
                    if event.logprob is not None:
                        one.logprobs.append(event.logprob.logprob)
                case Finished():
                    yield from self._finished(self._open.pop(event.request_id), event)
                case Failed():
                    del self._open[event.request_id]
                    yield self._failure(one, event.message)
                    yield from self._take(self._begin(one.item, one.next_turns[1:]))

    def _finished(self, one: _Open, event: Finished) -> Iterator[Record]:
        """Yield the record of an answer; after a first turn, submit its next turn and the next cell's first."""
        if not one.next_turns:
            yield self._ended(one, event)
            return
        request = one.next_turns[0][0]
        self._open[request.id] = _Open(one.item, one.cell)
        yield from self._take(self._loop.submit(request))
        yield from self._take(self._begin(one.item, one.next_turns[1:]))

    def _ended(self, one: _Open, event: Finished) -> Record:
        """Return a failure if there is no answer to score.

        That is if the cache was full before all forced tokens were fed, or if the next turn did not continue from the
        whole prompt.
        """
        prompt = one.item.prompt
        if prompt.following and event.usage.cached_tokens != len(prompt.tokens):
            return self._failure(one, "the first turn was no longer in the prefix store; raise prefix_store")
        fed, given = len(one.tokens), len(one.item.prompt.forced)
        if fed < given:
            return self._failure(
                one, f"the cache was full after {fed:,} of the {given:,} tokens that follow the prompt"
            )
        return self._record(one, event)

    def _failure(self, one: _Open, reason: str) -> Record:
        digest, facts = one.item.prompt.digest, one.item.sample.facts
        return Record(*one.item.key(one.cell), score=None, prompt=digest, error=reason, facts=facts)

    def _record(self, one: _Open, event: Finished) -> Record:
        item, given = one.item, len(one.item.prompt.forced)
        answer = Answer(self._tokenizer.decode(one.tokens[given:]), tuple(one.logprobs))
        return Record(
            *item.key(one.cell),
            score=item.task.score(answer, item.sample),
            prompt=item.prompt.digest,
            text=answer.text,
            prompt_tokens=event.usage.prompt_tokens,
            kept=event.usage.kv.kept,
            entries=event.usage.kv.capacity,
            output_tokens=len(one.tokens) - given,
            ring_wraps=event.usage.kv.ring_wraps,
            finish=event.reason,
            facts=item.sample.facts,
            logprobs=tuple(answer.logprobs),
        )


def _first_turn(request: Request, item: UnansweredPrompt) -> Request:
    """Return the request without the next turn's tokens. It ends at the first of them, which is not fed."""
    sampling = replace(request.sampling, max_tokens=1)
    return replace(
        request,
        id=f"{request.id}/first",
        tokens=item.prompt.tokens,
        sampling=sampling,
        forced=item.prompt.following[:1],
    )
