"""run: turns prompts into records, through the scheduler and graphs that serve users.

Each prompt is prefilled once and compressed for each of its cells. All cells decode together, in one batch with other
prompts.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ringkv.base.engine import Engine
from ringkv.base.events import Event, Failed, Finished, Token
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.evaluation.cells import FULL, Cell
from ringkv.evaluation.journal import Record
from ringkv.evaluation.pending import UnansweredPrompt
from ringkv.evaluation.sample import Answer
from ringkv.evaluation.scores import f1
from ringkv.evaluation.tasks.catalogue import TASKS
from ringkv.scheduler.loop import Loop
from ringkv.text.tokenizer import Tokenizer

AHEAD = 2  # submitted prompts without an output token


@dataclass
class _Running:
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
        self._running: dict[str, _Running] = {}

    def records(self, pending: Sequence[UnansweredPrompt]) -> Iterator[Record]:
        """Yield a record for each prompt and cell as it finishes. A cell that fails is recorded with the reason."""
        waiting = deque(enumerate(pending))
        while waiting or self._running:
            while waiting and len({id(run.item) for run in self._running.values() if not run.tokens}) < AHEAD:
                yield from self._take(self._submit(*waiting.popleft()))
            yield from self._take(self._loop.step())

    def _submit(self, number: int, item: UnansweredPrompt) -> Sequence[Event]:
        prompt, eos = item.prompt, self._tokenizer.eos_ids
        sampling = SamplingParams(max_tokens=item.output, temperature=0.0, logprobs=0 if item.task.is_loss else None)
        requests = [
            Request(
                f"{number}/{place}", prompt.prefilled, sampling, item.choice(cell), eos, prompt.forced, salt=item.salt
            )
            for place, cell in enumerate(item.cells)
        ]
        if prompt.following:
            return self._begin(item, list(zip(requests, item.cells, strict=True)))
        for request, cell in zip(requests, item.cells, strict=True):
            self._running[request.id] = _Running(item, cell)
        return self._loop.submit(*requests)

    def _begin(self, item: UnansweredPrompt, next_turns: Sequence[tuple[Request, Cell]]) -> Sequence[Event]:
        """Submit the first turn of the first of these. The prefix store has its prompt for those that follow.

        A first turn ends at the first token of the next turn, which is not fed.
        """
        if not next_turns:
            return []
        request, cell = next_turns[0]
        sampling, forced = replace(request.sampling, max_tokens=1), item.prompt.following[:1]
        name = f"{request.id}/first"
        self._running[name] = _Running(item, cell, next_turns)
        first = replace(request, id=name, tokens=item.prompt.tokens, sampling=sampling, forced=forced)
        return self._loop.submit(first)

    def _take(self, events: Sequence[Event]) -> Iterator[Record]:
        for event in events:
            run = self._running[event.request_id]
            match event:
                case Token():
                    run.tokens.append(event.token)
                    if event.logprob is not None:
                        run.logprobs.append(event.logprob.logprob)
                case Finished():
                    yield from self._finished(self._running.pop(event.request_id), event)
                case Failed():
                    del self._running[event.request_id]
                    yield self._failure(run, event.message)
                    yield from self._take(self._begin(run.item, run.next_turns[1:]))

    def _finished(self, run: _Running, event: Finished) -> Iterator[Record]:
        """Yield the record of an answer; after a first turn, submit its next turn and the next cell's first."""
        if not run.next_turns:
            yield self._record(run, event)
            return
        request = run.next_turns[0][0]
        self._running[request.id] = _Running(run.item, run.cell)
        yield from self._take(self._loop.submit(request))
        yield from self._take(self._begin(run.item, run.next_turns[1:]))

    def _record(self, run: _Running, event: Finished) -> Record:
        """Return the record, or a failure if there is no answer to score.

        That is if the cache was full before all forced tokens were fed, or if the next turn did not continue from the
        whole prompt.
        """
        item, prompt, usage = run.item, run.item.prompt, event.usage
        if prompt.following and usage.cached_tokens != len(prompt.tokens):
            return self._failure(run, "the first turn was no longer in the prefix store; raise prefix_store")
        fed, given = len(run.tokens), len(prompt.forced)
        if fed < given:
            return self._failure(
                run, f"the cache was full after {fed:,} of the {given:,} tokens that follow the prompt"
            )
        answer = Answer(self._tokenizer.decode(run.tokens[given:]), tuple(run.logprobs))
        return Record(
            *item.key(run.cell),
            score=item.task.score(answer, item.sample),
            prompt=prompt.digest,
            text=answer.text,
            prompt_tokens=usage.prompt_tokens,
            kept=usage.kv.kept,
            entries=usage.kv.capacity,
            output_tokens=fed - given,
            ring_wraps=usage.kv.ring_wraps,
            finish=event.reason,
            facts=item.sample.facts,
            logprobs=tuple(answer.logprobs),
        )

    def _failure(self, run: _Running, reason: str) -> Record:
        digest, facts = run.item.prompt.digest, run.item.sample.facts
        return Record(*run.item.key(run.cell), score=None, prompt=digest, error=reason, facts=facts)


def scored(records: Iterable[Record], known: Sequence[Record]) -> Iterator[Record]:
    """Yield the records; those of relative tasks after the full cache's answer to their prompt, with their scores.

    Nothing but the full cache's answers can be compared with the answers of relative tasks. known: earlier answers,
    with their texts. A record whose prompt the full cache does not answer is a failure.
    """
    full = {answer.key[:3]: answer for answer in known if answer.cell == FULL}
    waiting: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        prompt = record.key[:3]
        if not TASKS[record.task].is_relative or (record.score is None and record.cell != FULL):
            yield record
        elif record.cell == FULL:
            full[prompt] = record
            yield _compared(record, record)
            yield from (_compared(answer, record) for answer in waiting.pop(prompt, ()))
        elif prompt in full:
            yield _compared(record, full[prompt])
        else:
            waiting[prompt].append(record)


def _compared(record: Record, full: Record) -> Record:
    """Return a record with its score: F1 of the words that it has in common with the full cache's answer."""
    if full.score is None:
        error = full.error if record is full else "the full cache has no answer to compare with"
        return replace(record, score=None, error=error)
    return replace(record, score=1.0 if record.text == full.text else f1(record.text, (full.text,)))
