"""studies: the accuracy studies that can be run again. Tasks, caches and prompt counts are fixed here before a run.

bench/results/accuracy also has the answers of finished studies that are not defined here any more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringkv.base.kv import KVChoice
from ringkv.base.selectors import KeyDiff, SnapKV
from ringkv.evaluation.cells import Cell
from ringkv.evaluation.evaluate import Study

QWEN, SMOLLM2 = "qwen2.5-coder-1.5b", "smollm2"
FULL = Cell(KVChoice(policy="full"))
OURS = KVChoice()
WIDE = KVChoice(select=SnapKV(window=64))  # our default when the first studies ran
KVPRESS = KVChoice(select=SnapKV(window=64, kernel=5, pooling="avg"))  # the usual settings of NVIDIA's kvpress
SNAPKV = replace(KVPRESS, policy="snapkv")
STREAMING = KVChoice(policy="streaming")
KEYDIFF = KVChoice(select=KeyDiff())
PAGED = KVChoice("arkvale")
BUDGETS = ("2x", "4x", "8x")
LATER = ("2x", "4x")
KEYS = ("1024", "512")  # entries for pass keys

NEEDLES = (
    *("niah_single_2", "niah_multikey_1", "niah_single_3", "niah_multikey_2", "niah_multivalue", "niah_single_1"),
    *("niah_multikey_3", "niah_multiquery"),
)
LATER_TASKS = ("niah_single_3", "niah_multikey_2", "vt", "niah_multivalue")
OTHER_LATER_TASKS = (
    *("niah_single_1", "niah_single_2", "niah_multikey_1", "niah_multikey_3", "niah_multiquery"),
    *("cwe", "fwe", "qa_1", "qa_2"),
)
LOOKED_UP = ("registers", "dictionary_75", "dictionary_140")
OPTIONS_OF: Mapping[str, Mapping[str, Any]] = {  # of engines, by study
    name: {"kv_page": 16} for name in ("lookups-16-qwen", "pages-16-longbench-qwen")
}


def crossed(budgets: Sequence[str], *choices: KVChoice) -> list[Cell]:
    """Return the full cache, and each choice at each budget."""
    return [FULL, *(Cell(choice, budget) for budget in budgets for choice in choices)]


def _next(tasks: Sequence[str], cells: Sequence[Cell], length: int, count: int, seed: int) -> Study:
    """Return a study on Qwen whose questions come in the next turn."""
    return Study(QWEN, tasks, cells, (length,), ("next",), count, seed)


def _longbench(cells: Sequence[Cell]) -> Study:
    """Return a study of LongBench's other prompts."""
    return Study(QWEN, ("longbench",), cells, (8192,), count=26, seed=9)


STUDIES: Mapping[str, Study] = {
    # the default
    "default-qwen": Study(QWEN, NEEDLES, crossed(BUDGETS, STREAMING, KVPRESS, OURS, KEYDIFF), (4096,), count=5, seed=2),
    # policies
    "ruler-smollm2": Study(
        SMOLLM2, ("ruler",), crossed(BUDGETS, STREAMING, SNAPKV, KVPRESS, WIDE, OURS), (4096,), ("inside", "after")
    ),
    "ruler-qwen": Study(
        QWEN, ("ruler",), crossed(BUDGETS, STREAMING, SNAPKV, KVPRESS, WIDE, KEYDIFF), (4096,), ("inside", "after")
    ),
    "longbench-qwen": Study(QWEN, ("longbench",), crossed(BUDGETS, STREAMING, SNAPKV, KVPRESS, WIDE, KEYDIFF), (8192,)),
    "wikitext": Study(
        SMOLLM2, ("wikitext",), crossed(BUDGETS, STREAMING, SNAPKV, KVPRESS, WIDE, OURS), (2048, 4096, 7936)
    ),
    # questions in the next turn
    "later-qwen": _next(LATER_TASKS, crossed(LATER, PAGED, KEYDIFF), 4096, 10, 7),
    "later-others-qwen": _next(OTHER_LATER_TASKS, crossed(LATER, PAGED), 4096, 5, 7),
    "ruler-16k-qwen": replace(
        _next(LATER_TASKS, crossed(LATER, OURS, KEYDIFF, PAGED), 16_384, 2, 11), places=("inside", "next")
    ),
    "conversation-qwen": _next(
        ("conversation",), [*crossed(("2x",), OURS, KEYDIFF, PAGED), Cell(PAGED, "4x")], 4096, 20, 13
    ),
    "lookups-qwen": _next(LOOKED_UP, crossed(LATER, PAGED, KEYDIFF), 10_240, 10, 8),
    "lookups-16-qwen": _next(LOOKED_UP, crossed(("4x",), PAGED, KEYDIFF), 10_240, 30, 8),
    "passkeys-8k-qwen": _next(("passkeys",), crossed(KEYS, PAGED, KEYDIFF), 8192, 20, 7),
    "passkeys-30k-qwen": _next(("passkeys",), crossed(KEYS, PAGED, KEYDIFF), 30_000, 20, 7),
    # what is kept or read
    "inside-qwen": Study(QWEN, LATER_TASKS, crossed(("4x",), OURS, PAGED), (4096,), count=10, seed=7),
    "pages-longbench-qwen": _longbench(crossed(("4x",), OURS, PAGED)),
    "pages-16-longbench-qwen": _longbench([Cell(PAGED, "4x")]),
}
