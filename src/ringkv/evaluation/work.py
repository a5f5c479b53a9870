"""Work: what is left to ask: prompts, each with the cells that it still needs an answer under."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile, zip_longest
from typing import Protocol

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.progress import Progress
from ringkv.evaluation.cells import Cell
from ringkv.evaluation.prompt import Prompt, Prompts
from ringkv.evaluation.sample import CannotMake, Place, Sample
from ringkv.evaluation.tasks.catalogue import Task
from ringkv.evaluation.tasks.source import Source

Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Work:
    """One prompt, prefilled once, and compressed for each of its cells.

    begun: its first tokens that are those of the prompt before it, and need not be read twice.
    """

    task: Task
    place: Place
    sample: Sample
    prompt: Prompt
    cells: tuple[Cell, ...]
    begun: int = 0

    @property
    def output(self) -> int:
        """Tokens given and drawn after the prompt, at most."""
        return len(self.prompt.forced) + self.sample.answer_tokens

    def key(self, cell: Cell) -> Key:
        return self.task.name, self.place, self.sample.name, cell.label

    def choice(self, cell: Cell) -> KVChoice:
        return cell.of(len(self.prompt.tokens), self.output)

    @property
    def capacity(self) -> int:
        """Entries that the largest of its slots needs."""
        return max(cell.entries(len(self.prompt.tokens), self.output) for cell in self.cells)


class Asked(Protocol):
    """What `prepare` needs of a study."""

    @property
    def tasks(self) -> Sequence[str]: ...
    @property
    def cells(self) -> Sequence[Cell]: ...
    @property
    def places(self) -> Sequence[Place]: ...


def prepare(
    tasks: Sequence[Task], study: Asked, source: Source, prompts: Prompts, done: Mapping[Key, str], tell: Progress
) -> tuple[list[Work], list[str]]:
    """All that is not done, the tasks taking turns, so that a run that is stopped early has something of each.

    A sample's places follow one another, so that its context is read once for both.

    Also why tasks were left out: those of a group that cannot be made. Raises CannotMake for one that was named.
    """
    by_task, left_out = [], []
    for place, task in enumerate(tasks):
        tell(place, len(tasks), f"making prompts: {task.name}")
        try:
            by_task.append(list(_of_task(task, study, source, prompts, done)))
        except CannotMake as error:
            if task.name in study.tasks:
                raise
            left_out.append(f"{task.name} was left out: {error}")
    return [work for turn in zip_longest(*by_task, fillvalue=()) for works in turn for work in works], left_out


def _of_task(
    task: Task, study: Asked, source: Source, prompts: Prompts, done: Mapping[Key, str]
) -> Iterator[list[Work]]:
    """Those of each sample that is not done."""
    for sample in _samples(task, source):
        whole = [
            Work(task, place, sample, prompts.make(sample, place), tuple(study.cells))
            for place in places_of(task, study.places)
        ]
        if works := [left for work in whole if (left := _left(work, done)).cells]:
            yield [works[0], *(replace(work, begun=_alike(one.prompt, work.prompt)) for one, work in pairwise(works))]


def _samples(task: Task, source: Source) -> Iterator[Sample]:
    samples = task.samples(source)
    first = next(samples, None)
    if first is None:
        raise CannotMake(f"it has no prompt of at most {source.longest:,} tokens; ask for longer ones", "lengths")
    yield first
    yield from samples


def _alike(before: Prompt, prompt: Prompt) -> int:
    """How many tokens both begin with."""
    return sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(before.tokens, prompt.tokens, strict=False)))


def _left(work: Work, done: Mapping[Key, str]) -> Work:
    """Less the cells that are answered."""
    answered = {cell: done[work.key(cell)] for cell in work.cells if work.key(cell) in done}
    if any(digest != work.prompt.digest for digest in answered.values()):
        raise InvalidRequest(
            f"the folder has answers to another prompt {work.sample.name} of {work.task.name}, made with other "
            "lengths, --data or another version; choose another folder with --to"
        )
    return replace(work, cells=tuple(cell for cell in work.cells if cell not in answered))


def places_of(task: Task, asked: Sequence[Place]) -> Sequence[Place]:
    """A text to be scored always comes after, and a question that is part of its prompt always stands inside."""
    if task.is_loss:
        return ("after",)
    return asked if task.has_question else ("inside",)
