"""Two questions about one document: how soon the second is answered, and whether what it asks for is still there.

    python -m bench.turns                                                SmolLM2, documents of 8k
    python -m bench.turns --model qwen2.5-coder-1.5b --length 4096 --documents 8

A document hides two numbers. The first question asks for one, the second, in the same conversation, for the other. Each
cache takes its second turn in two ways: it chooses anew from all tokens (reread), whose dense entries come out of the
prefix store, or it goes on from what the first turn left (continue). Beside them, for some documents, the same turn
where nothing is known: it chooses what rereading chooses, from the same entries, and has to make them.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, cycle, islice
from pathlib import Path
from pydoc_data.topics import topics
from statistics import fmean, median

from bench.results import keep, table
from ringkv.base.errors import RequestFailed
from ringkv.base.events import Failed, Finished, Token
from ringkv.base.kv import TURN_MODES, KVChoice
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from ringkv.evaluation.cells import Cell, crossed
from ringkv.llm.show_progress import show_progress
from ringkv.models.config import load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate
from ringkv.scheduler.loop import Loop
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer

ANSWER = 24  # tokens in which a number must come
ROOM = 160  # tokens of a conversation that are not its document: questions, answers and the template's own
NAMES = ("Oslo", "Lima")
STORE = 2 * 10**9  # bytes
UNKNOWN = "nothing known"
Message = dict[str, str]


@dataclass(frozen=True)
class Document:
    text: str
    numbers: tuple[str, str]

    def first(self) -> list[Message]:
        return [{"role": "user", "content": f"{self.text}\n\n{question(NAMES[0])}"}]

    def second(self, said: str) -> list[Message]:
        """The conversation up to its second question, after what was said to the first."""
        answer = {"role": "assistant", "content": said}
        return [*self.first(), answer, {"role": "user", "content": question(NAMES[1])}]


@dataclass(frozen=True)
class Turn:
    """One answer: whether it was right, and how soon it came."""

    text: str
    first_s: float
    read: int  # tokens of the conversation that were prefilled


@dataclass(frozen=True)
class Figure:
    model: str
    cache: str
    way: str
    documents: int
    compared: int  # of them, those whose second turn was also read from nothing
    first_right: float
    second_right: float
    read: float
    first_s: float
    sooner: float | None  # than with nothing known, on the documents where that was measured
    same: float | None  # of those, how many were answered in the same words


def question(name: str) -> str:
    return f"What is the special magic number for {name} mentioned in the text? Answer with the number only."


def documents(tokenizer: Tokenizer, count: int, length: int) -> list[Document]:
    """Prose of about `length` tokens, each a stretch of its own, with both numbers at depths that go round."""
    words = tokenizer.encode("\n\n".join(topics.values()), add_special_tokens=False)
    prose = chain.from_iterable(cycle([words]))
    return [_document(tokenizer.decode(list(islice(prose, length))), place, count) for place in range(count)]


def _document(text: str, place: int, count: int) -> Document:
    numbers = tuple(str(1_000_003 + 7_368_787 * (2 * place + which + 1) % 8_999_993) for which in (0, 1))
    depths = place / count, (place / count + 0.5) % 1
    for name, number, depth in sorted(zip(NAMES, numbers, depths, strict=True), key=lambda one: -one[2]):
        at = text.find("\n", int(depth * (len(text) - 1)))
        at = len(text) if at < 0 else at
        text = f"{text[:at]}\nThe special magic number for {name} is {number}.\n{text[at:]}"
    return Document(text, (numbers[0], numbers[1]))


class Talks:
    """Conversations with one engine, one request at a time."""

    def __init__(self, folder: Path, cells: Sequence[Cell], length: int) -> None:
        self.tokenizer, self._template = Tokenizer.from_directory(folder), ChatTemplate.from_directory(folder)
        most = max(cell.entries(length, ANSWER) for cell in cells)
        options = Options(slots=1, kv_budget=most, prompt_tokens=length + ROOM, prefix_store=STORE)
        self._loop = Loop(build(resolve(folder, load_config(folder), options, available_bytes())))
        self._count = 0

    def ask(self, messages: Sequence[Message], choice: KVChoice, salt: str) -> Turn:
        tokens = tuple(self._template.encode(messages, self.tokenizer))
        sampling = SamplingParams(max_tokens=ANSWER, temperature=0.0)
        self._count += 1
        request = Request(str(self._count), tokens, sampling, choice, self.tokenizer.eos_ids, salt=salt)
        started, first_s, said = time.perf_counter(), 0.0, list[int]()
        events = self._loop.submit(request)
        while True:
            for event in events:
                match event:
                    case Token():
                        first_s = first_s or time.perf_counter() - started
                        said.append(event.token)
                    case Finished(usage=usage):
                        text = self.tokenizer.decode([token for token in said if token not in self.tokenizer.eos_ids])
                        return Turn(text, first_s, usage.prompt_tokens - usage.cached_tokens)
                    case Failed():
                        raise RequestFailed(event.message)
            events = self._loop.step()


Turns = tuple[Turn, Turn]
Answers = dict[tuple[str, str], Turns]  # to one document, by cell and way


def measure(
    talks: Talks, found: Sequence[Document], cells: Sequence[Cell], asked: argparse.Namespace
) -> Iterator[Answers]:
    """Document by document, so that the store holds the one that is asked about, under each cell."""
    for place, one in enumerate(found):
        answers: Answers = {}
        for cell in cells:
            choice, salt = cell.of(asked.length, ANSWER), str(place)
            for way in TURN_MODES:
                answers[cell.label, way] = _talk(talks, one, replace(choice, turns=way), salt, salt)
            if place < asked.timed:
                answers[cell.label, UNKNOWN] = _talk(talks, one, choice, salt, f"{salt} {cell.label}")
        yield answers


def _talk(talks: Talks, one: Document, choice: KVChoice, *salts: str) -> Turns:
    """Both turns, each with a salt. The first one's document may be known from another cell's conversation."""
    first = talks.ask(one.first(), choice, salts[0])
    return first, talks.ask(one.second(first.text), choice, salts[1])


def figures(model: str, cells: Sequence[Cell], found: Sequence[Document], answers: Sequence[Answers]) -> list[Figure]:
    """For each cell and way."""

    def of(cell: Cell, way: str) -> Figure:
        asked = [(one, said) for one, said in zip(found, answers, strict=True) if (cell.label, way) in said]
        turns = [said[cell.label, way] for _, said in asked]
        right = [
            [number in turn.text for number, turn in zip(one.numbers, said[cell.label, way], strict=True)]
            for one, said in asked
        ]
        pairs = [
            (said[cell.label, way][1], said[cell.label, UNKNOWN][1])
            for _, said in asked
            if (cell.label, UNKNOWN) in said
        ]
        is_compared = bool(pairs) and way != UNKNOWN
        return Figure(
            model=model,
            cache=cell.label,
            way=way,
            documents=len(turns),
            compared=len(pairs) if is_compared else 0,
            first_right=fmean(first for first, _ in right),
            second_right=fmean(second for _, second in right),
            read=fmean(second.read for _, second in turns),
            first_s=median(second.first_s for _, second in turns),
            sooner=median(alone.first_s / mine.first_s for mine, alone in pairs) if is_compared else None,
            same=fmean(alone.text == mine.text for mine, alone in pairs) if is_compared else None,
        )

    return [of(cell, way) for cell in cells for way in (UNKNOWN, *TURN_MODES)]


def main() -> None:
    asked = _arguments()
    folder = locate(asked.model)
    cells = crossed(("full", "snapstream"), asked.budgets.split(","), KVChoice(select=SnapKV(kernel=asked.kernel)))
    with show_progress() as tell:
        tell(0, 0, "loading the engine")
        talks = Talks(folder, cells, asked.length)
        found = documents(talks.tokenizer, asked.documents, asked.length - ROOM)
        answers = []
        for done, one in enumerate(measure(talks, found, cells, asked), 1):
            answers.append(one)
            tell(done, len(found), "documents")
    workload = {name: getattr(asked, name) for name in ("model", "length", "documents", "timed", "kernel")}
    taken = figures(asked.model, cells, found, answers)
    keep("turns", workload, [asdict(one) for one in taken], shown(taken))


def shown(taken: Sequence[Figure]) -> str:
    head = (
        "cache",
        "second turn",
        "documents",
        "first right",
        "second right",
        "tokens read",
        "first token",
        "compared",
        "sooner",
        "same answer",
    )
    return table(head, [_row(one) for one in taken])


def _row(one: Figure) -> tuple[str, ...]:
    first = f"{one.first_s:.2f} s"
    compared = (
        ("", "", "")
        if one.sooner is None or one.same is None
        else (str(one.compared), f"{one.sooner:.1f}x", f"{one.same:.0%}")
    )
    right = f"{one.first_right:.0%}", f"{one.second_right:.0%}"
    return (one.cache, one.way, str(one.documents), *right, f"{one.read:,.0f}", first, *compared)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--length", type=int, default=8000, help="of a conversation's two turns, in tokens (8000)")
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument(
        "--timed", type=int, default=3, help="documents whose second turn is also read from nothing (3)"
    )
    parser.add_argument("--budgets", default="2x,4x", help="of the compressed caches (2x,4x)")
    parser.add_argument("--kernel", type=int, default=SnapKV().kernel, help="width over which votes are pooled")
    return parser.parse_args(sys.argv[1:])


if __name__ == "__main__":
    main()
