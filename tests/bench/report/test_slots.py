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


ROWS = latest(measured("kv_format", size("plain", 1000), size("int4", 280), run="1"))


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
    "chains-int4-qwen": answers("gsm8k", ("full", 0.5)),
}


def test_a_share_in_fewer_bits_takes_the_product_of_both_and_is_compared_with_all_in_16() -> None:
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in slots(ROWS, ANSWERED).splitlines()]
    assert lines[0] == ["kept", "`plain`", "`int4`"]
    assert [[cell.partition(" [")[0] for cell in line] for line in lines[2:]] == [
        ["1", "100.0%: 100.0", "28.0%: 50.0 -50.0"],
        ["1/4", "25.0%: 75.0 -25.0", "7.0%: 25.0 -75.0"],
    ]
    (chain,) = chains(ANSWERED).splitlines()[2:]
    assert [cell.strip() for cell in chain.split("|")[1:-1]] == ["int4", "50.0", "", "7"]


def test_each_format_is_a_line_of_the_picture() -> None:
    image = picture(ROWS, ANSWERED)
    assert image.count('class="line"') == 2
    assert ">int4<" in image
