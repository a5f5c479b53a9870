"""Accuracy against bytes: formats of slots times budgets, from answers of several studies."""

from typing import Any

from bench.report.slots import chains, picture, slots
from bench.results import latest
from bench.studies import QWEN
from ringkv.evaluation.journal import Record
from tests.bench.report.made import measured


def size(form: str, count: int) -> dict[str, Any]:
    speed = {"attend_s": 1e-3, "attend_ratio": 1.0, "perplexity": 20.0, "more": 0.0}
    return {"model": QWEN, "format": form, "entry_bytes": count, **speed}


ROWS = latest(measured("kv_format", size("plain", 1000), size("int8", 516), size("int4", 280), run="1"))


def answers(tasks: str, *cells: tuple[str, float]) -> list[Record]:
    """Two answers to each task under each cell, all with the cell's score."""
    return [
        Record(task, "inside", str(at), cell, score, prompt="a", prompt_tokens=2000, output_tokens=7)
        for task in tasks.split()
        for cell, score in cells
        for at in range(2)
    ]


ANSWERED = {
    "slots-plain-qwen": answers("vt niah_single_3", ("full", 1.0), ("snapstream 4x", 0.75)),
    "slots-int4-qwen": answers("vt niah_single_3", ("full", 0.5), ("snapstream 4x", 0.25)),
    "chains-plain-qwen": answers("gsm8k", ("full", 0.5)),
    "chains-int4-qwen": answers("gsm8k", ("full", 0.4)),
    "code-int4-qwen": answers("humaneval", ("full", 0.2)),
}


def cells(text: str) -> list[list[str]]:
    """The cells of a table's lines, without intervals."""
    return [[cell.partition(" [")[0].strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]


def test_a_share_in_fewer_bits_takes_the_product_of_both_and_is_compared_with_all_in_16() -> None:
    head, _, *lines = cells(slots(ROWS, ANSWERED))
    assert head == ["suite", "kept", "`plain`", "`int8`", "`int4`"]
    assert lines == [
        ["RULER, 2k", "1", "100.0%: 100.0", "", "28.0%: 50.0 -50.0"],
        ["RULER, 2k", "1/4", "25.0%: 75.0 -25.0", "", "7.0%: 25.0 -75.0"],
    ]


def test_chains_and_programs_are_compared_with_16_bits_in_one_line_of_each_format() -> None:
    _, _, *lines = cells(chains(ANSWERED))
    assert lines == [
        ["plain", "50.0", "", "7", "", "", ""],
        ["int4", "40.0", "-10.0", "7", "20.0", "", "7"],
    ]


def test_each_format_is_a_line_of_the_picture() -> None:
    image = picture(ROWS, ANSWERED)
    assert image.count('class="line"') == 2
    assert ">int4<" in image
