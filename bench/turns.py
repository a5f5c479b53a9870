"""turns: two questions about one document: time to first token of the second answer, and whether it is right.

    python -m bench.turns                                                SmolLM2, documents of 8k
    python -m bench.turns --model qwen2.5-coder-1.5b --length 4096 --documents 8

A document hides two numbers. The first question asks for one, the second, in the same conversation, for the other. The
second turn runs in two modes: `reread` selects again from all tokens, whose entries come from the prefix store, and
`continue` goes on from the entries that the first turn left. For some documents the second turn also runs with an empty
prefix store: it selects as `reread` does, but has to prefill all tokens.
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

ANSWER = 24  # tokens of an answer, which must contain the number
ROOM = 160  # tokens of a conversation besides its document: questions, answers and the template's
NAMES = ("Oslo", "Lima")
STORE = 2 * 10**9  # bytes
EMPTY_STORE = "nothing known"  # the value of "way" in the table of results
ChatMessage = dict[str, str]


@dataclass(frozen=True)
class Document:
    text: str
    numbers: tuple[str, str]

    def first(self) -> list[ChatMessage]:
        return [{"role": "user", "content": f"{self.text}\n\n{question(NAMES[0])}"}]

    def second(self, answer: str) -> list[ChatMessage]:
        """Return the conversation up to its second question, with this answer to the first."""
        reply = {"role": "assistant", "content": answer}
        return [*self.first(), reply, {"role": "user", "content": question(NAMES[1])}]


@dataclass(frozen=True)
class TimedAnswer:
    """One answer, and the seconds to its first token."""

    text: str
    first_s: float
    read: int  # tokens of the conversation that were prefilled


@dataclass(frozen=True)
class TurnFigure:
    model: str
    cache: str
    way: str
    documents: int
    compared: int  # documents whose second turn also ran with an empty store
    first_right: float
    second_right: float
    read: float
    first_s: float
    sooner: float | None  # first_s with an empty store over first_s, on compared documents
    same: float | None  # share of compared documents with the same answer


def question(name: str) -> str:
    return f"What is the special magic number for {name} mentioned in the text? Answer with the number only."


def documents(tokenizer: Tokenizer, count: int, length: int) -> list[Document]:
    """Return documents of about `length` tokens of different prose, with both numbers at varied depths."""
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


class Conversations:
    """Conversations with one engine, one request at a time."""

    def __init__(self, folder: Path, cells: Sequence[Cell], length: int) -> None:
        self.tokenizer, self._template = Tokenizer.from_directory(folder), ChatTemplate.from_directory(folder)
        most = max(cell.entries(length, ANSWER) for cell in cells)
        options = Options(slots=1, kv_budget=most, prompt_tokens=length + ROOM, prefix_store=STORE)
        self._loop = Loop(build(resolve(folder, load_config(folder), options, available_bytes())))
        self._count = 0

    def answer(self, messages: Sequence[ChatMessage], choice: KVChoice, salt: str) -> TimedAnswer:
        tokens = tuple(self._template.encode(messages, self.tokenizer))
        sampling = SamplingParams(max_tokens=ANSWER, temperature=0.0)
        self._count += 1
        request = Request(str(self._count), tokens, sampling, choice, self.tokenizer.eos_ids, salt=salt)
        started, first_s, generated = time.perf_counter(), 0.0, list[int]()
        events = self._loop.submit(request)
        while True:
            for event in events:
                match event:
                    case Token():
                        first_s = first_s or time.perf_counter() - started
                        generated.append(event.token)
                    case Finished(usage=usage):
                        kept = [token for token in generated if token not in self.tokenizer.eos_ids]
                        prefilled = usage.prompt_tokens - usage.cached_tokens
                        return TimedAnswer(self.tokenizer.decode(kept), first_s, prefilled)
                    case Failed():
                        raise RequestFailed(event.message)
            events = self._loop.step()


TurnPair = tuple[TimedAnswer, TimedAnswer]
DocumentAnswers = dict[tuple[str, str], TurnPair]  # of one document, by cell label and way


def measure(
    conversations: Conversations, found: Sequence[Document], cells: Sequence[Cell], args: argparse.Namespace
) -> Iterator[DocumentAnswers]:
    """Yield the answers of one document after another, so that the store still has it under each cell."""
    for place, one in enumerate(found):
        answers: DocumentAnswers = {}
        for cell in cells:
            choice, salt = cell.of(args.length, ANSWER), str(place)
            for way in TURN_MODES:
                answers[cell.label, way] = _two_turns(conversations, one, replace(choice, turns=way), salt, salt)
            if place < args.timed:
                answers[cell.label, EMPTY_STORE] = _two_turns(conversations, one, choice, salt, f"{salt} {cell.label}")
        yield answers


def _two_turns(conversations: Conversations, one: Document, choice: KVChoice, *salts: str) -> TurnPair:
    """Run both turns, each with a prefix-store salt. The first turn may hit entries of another cell's conversation."""
    first = conversations.answer(one.first(), choice, salts[0])
    return first, conversations.answer(one.second(first.text), choice, salts[1])


def figures(
    model: str, cells: Sequence[Cell], found: Sequence[Document], answers: Sequence[DocumentAnswers]
) -> list[TurnFigure]:
    """Return the figures of each cell and way."""

    def of(cell: Cell, way: str) -> TurnFigure:
        answered = [(one, by_cell) for one, by_cell in zip(found, answers, strict=True) if (cell.label, way) in by_cell]
        turns = [by_cell[cell.label, way] for _, by_cell in answered]
        right = [
            [number in turn.text for number, turn in zip(one.numbers, by_cell[cell.label, way], strict=True)]
            for one, by_cell in answered
        ]
        pairs = [
            (by_cell[cell.label, way][1], by_cell[cell.label, EMPTY_STORE][1])
            for _, by_cell in answered
            if (cell.label, EMPTY_STORE) in by_cell
        ]
        is_compared = bool(pairs) and way != EMPTY_STORE
        return TurnFigure(
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

    return [of(cell, way) for cell in cells for way in (EMPTY_STORE, *TURN_MODES)]


def main() -> None:
    args = _arguments()
    folder = locate(args.model)
    cells = crossed(("full", "snapstream"), args.budgets.split(","), KVChoice(select=SnapKV(kernel=args.kernel)))
    with show_progress() as report:
        report(0, 0, "loading the engine")
        conversations = Conversations(folder, cells, args.length)
        found = documents(conversations.tokenizer, args.documents, args.length - ROOM)
        answers = []
        for done, one in enumerate(measure(conversations, found, cells, args), 1):
            answers.append(one)
            report(done, len(found), "documents")
    workload = {name: getattr(args, name) for name in ("model", "length", "documents", "timed", "kernel")}
    taken = figures(args.model, cells, found, answers)
    keep("turns", workload, [asdict(one) for one in taken], shown(taken))


def shown(taken: Sequence[TurnFigure]) -> str:
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


def _row(one: TurnFigure) -> tuple[str, ...]:
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
    parser.add_argument("--length", type=int, default=8000, help="tokens of a conversation's two turns (8000)")
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument(
        "--timed", type=int, default=3, help="documents whose second turn also runs with an empty store (3)"
    )
    parser.add_argument("--budgets", default="2x,4x", help="budgets of the compressed caches (2x,4x)")
    parser.add_argument("--kernel", type=int, default=SnapKV().kernel, help="kernel width of the vote pooling")
    return parser.parse_args(sys.argv[1:])


if __name__ == "__main__":
    main()
