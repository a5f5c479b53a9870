"""Study: what is asked under which caches. UnansweredPrompt: a prompt with the cells that it has no answer for yet."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile, zip_longest
from pathlib import Path

from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.progress import Progress
from ringkv.evaluation.cells import Cell
from ringkv.evaluation.prompt import PromptBuilder, TokenizedPrompt
from ringkv.evaluation.sample import CannotMake, NoneOfKind, Place, Sample, not_empty
from ringkv.evaluation.tasks.catalogue import Task
from ringkv.evaluation.tasks.source import Source

Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class UnansweredPrompt:
    """One prompt, which is prefilled once and compressed for each of its cells.

    shared: number of leading tokens in common with the previous prompt, which are cached.
    """

    task: Task
    place: Place
    sample: Sample
    prompt: TokenizedPrompt
    cells: tuple[Cell, ...]
    shared: int = 0

    @property
    def output(self) -> int:
        """Maximum tokens of the answer, forced and sampled."""
        return len(self.prompt.forced) + self.sample.answer_tokens

    @property
    def salt(self) -> str:
        """What parts the prefix store: a next turn continues only if the store has no more tokens than the first."""
        return "turns" if self.prompt.following else ""

    @property
    def added(self) -> int:
        """Maximum tokens after the prompt: the next turn's, and the answer's."""
        return len(self.prompt.following) + self.output

    def key(self, cell: Cell) -> Key:
        return self.task.name, self.place, self.sample.name, cell.label

    def choice(self, cell: Cell) -> KVChoice:
        choice = cell.of(len(self.prompt.tokens), self.added)
        return replace(choice, turns="continue") if self.prompt.following else choice

    @property
    def capacity(self) -> int:
        """Entries that the largest of its slots needs."""
        return max(cell.held(len(self.prompt.tokens), self.added) for cell in self.cells)


@dataclass(frozen=True)
class Study:
    """Tasks by name or group. Each prompt is run under each of `cells`, with its question at each of `places`.

    lengths: tokens of generated prompts, answers included; real prompts are cut to the longest; none: to the context.
    count: prompts of each task and length. data: a folder with the data sets that tasks read. prompts: a file of the
    user's own prompts.
    """

    model: str
    tasks: Sequence[str]
    cells: Sequence[Cell]
    lengths: Sequence[int] = (4096,)
    places: Sequence[Place] = ("inside",)
    count: int = 10
    seed: int = 0
    data: Path | None = None
    prompts: Path | None = None


def prepare(
    tasks: Sequence[Task],
    study: Study,
    source: Source,
    prompts: PromptBuilder,
    done: Mapping[Key, str],
    progress: Progress,
) -> tuple[list[UnansweredPrompt], list[str]]:
    """Return the prompts without an answer, and a sentence for each task that was left out.

    Tasks alternate, so that a run that is stopped early has some answers of each. The places of a sample are adjacent,
    so that its context is prefilled once. A task of a group is left out if its prompts cannot be made, without a
    sentence if another task has them. Raises CannotMake for a task that was named.
    """
    by_task, left_out = [], []
    for place, task in enumerate(tasks):
        progress(place, len(tasks), f"making prompts: {task.name}")
        try:
            by_task.append(list(_of_task(task, study, source, prompts, done)))
        except CannotMake as error:
            if task.name in study.tasks:
                raise
            if not isinstance(error, NoneOfKind):
                left_out.append(f"{task.name} was left out: {error}")
    return [item for turn in zip_longest(*by_task, fillvalue=()) for items in turn for item in items], left_out


def _of_task(
    task: Task, study: Study, source: Source, prompts: PromptBuilder, done: Mapping[Key, str]
) -> Iterator[list[UnansweredPrompt]]:
    """Yield the pending prompts of each sample that has some. Prompts about one context share its tokens."""
    before: UnansweredPrompt | None = None
    none = CannotMake(f"it has no prompt of at most {source.longest:,} tokens; raise the lengths", "lengths")
    for sample in not_empty(task.samples(source), none):
        all_places = [
            UnansweredPrompt(task, place, sample, prompts.make(sample, place), tuple(study.cells))
            for place in places_of(task, study.places)
        ]
        if pending := [left for item in all_places if (left := _without_done(item, done)).cells]:
            yield list(map(_sharing, (before, *pending), pending))
            before = pending[-1]


def _sharing(before: UnansweredPrompt | None, item: UnansweredPrompt) -> UnansweredPrompt:
    """Return the prompt with the number of its leading tokens that the one before it has, if it has its context."""
    if before is None or (before.sample.context, before.salt) != (item.sample.context, item.salt):
        return item
    pairs = zip(before.prompt.tokens, item.prompt.tokens, strict=False)
    return replace(item, shared=sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))


def _without_done(item: UnansweredPrompt, done: Mapping[Key, str]) -> UnansweredPrompt:
    """Return the prompt without the cells that have an answer."""
    answered = {cell: done[item.key(cell)] for cell in item.cells if item.key(cell) in done}
    if any(digest != item.prompt.digest for digest in answered.values()):
        raise InvalidRequest(
            f"the folder has answers to another prompt {item.sample.name} of {item.task.name}, made with other "
            "lengths, --data or another version; choose another folder with --to"
        )
    return replace(item, cells=tuple(cell for cell in item.cells if cell not in answered))


def asked(tasks: Sequence[Task], places: Sequence[Place]) -> set[tuple[str, str]]:
    """Return the names of tasks, each with each place of its question."""
    return {(task.name, place) for task in tasks for place in places_of(task, places)}


def places_of(task: Task, requested: Sequence[Place]) -> Sequence[Place]:
    """Places of a task's question. A text to score is always after; a question that is part of its prompt is inside."""
    if task.is_loss:
        return ("after",)
    return requested if task.has_question else ("inside",)
