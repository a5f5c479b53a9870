"""studies: the accuracy studies that can be run again. Tasks, caches and prompt counts are fixed here before a run.

bench/results/accuracy also has the answers of finished studies that are not defined here any more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.kv import HeadBudgets, KVChoice
from ringkv.base.selectors import KeyDiff, KVzip, SnapKV
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
DIVIDED: tuple[HeadBudgets, ...] = ("equal", "global", "profile")
FORMATS: tuple[PlaneFormat, ...] = ("plain", "int8", "int4")
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
CODED = ("slots", "reading", "code", "chains")  # studies of formats
LOOKED_UP = ("registers", "dictionary_75", "dictionary_140")
OPTIONS_OF: Mapping[str, Mapping[str, Any]] = {  # of engines, by study
    **{f"{name}-{form}-qwen": {"kv_format": form} for name in CODED for form in FORMATS},
    **{f"workspace-{name}qwen": {"prefill_workspace": 4096} for name in ("", "passkey-")},
    **{name: {"kv_page": 16} for name in ("lookups-16-qwen", "pages-16-longbench-qwen", "dropped-qwen")},
}


def crossed(budgets: Sequence[str], *choices: KVChoice) -> list[Cell]:
    """Return the full cache, and each choice at each budget."""
    return [FULL, *(Cell(choice, budget) for budget in budgets for choice in choices)]


def divided() -> list[Cell]:
    """Return half of the prompt by how heads divide it, for questions that come later."""
    by_heads = (replace(choice, heads=heads) for choice in (OURS, KEYDIFF) for heads in ("equal", "global"))
    zips = (KVChoice(select=KVzip(), heads=heads) for heads in DIVIDED)
    return crossed(("2x",), *by_heads, KVChoice(heads="profile"), *zips)


def _next(tasks: Sequence[str], cells: Sequence[Cell], length: int, count: int, seed: int) -> Study:
    """Return a study on Qwen whose questions come in the next turn."""
    return Study(QWEN, tasks, cells, (length,), ("next",), count, seed)


def _longbench(cells: Sequence[Cell]) -> Study:
    """Return a study of LongBench's other prompts."""
    return Study(QWEN, ("longbench",), cells, (8192,), count=26, seed=9)


def _by_format(name: str, *of_study: Any, **more: Any) -> Mapping[str, Study]:
    return {f"{name}-{form}-qwen": Study(QWEN, *of_study, **more) for form in FORMATS}


STUDIES: Mapping[str, Study] = {
    # the default
    "default-qwen": Study(QWEN, NEEDLES, crossed(BUDGETS, STREAMING, KVPRESS, OURS, KEYDIFF), (4096,), count=5, seed=2),
    "choosing-window-qwen": Study(QWEN, ("ruler",), crossed(("4x", "8x"), WIDE, OURS), (4096,), count=4, seed=1),
    "choosing-longbench-qwen": Study(QWEN, ("longbench",), crossed(("4x",), WIDE, OURS), (8192,), count=10),
    "layouts-qwen": Study(
        QWEN, ("gsm8k",), crossed(("192", "256", "384"), OURS, KVChoice(elastic=False)), (2048,), count=40
    ),
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
    "dropped-qwen": _next(("dictionary_140",), [Cell(PAGED, "4x")], 10_240, 30, 12),
    "passkeys-8k-qwen": _next(("passkeys",), crossed(KEYS, PAGED, KEYDIFF), 8192, 20, 7),
    "passkeys-30k-qwen": _next(("passkeys",), crossed(KEYS, PAGED, KEYDIFF), 30_000, 20, 7),
    "passkey-30k-qwen": _next(("passkey",), crossed(KEYS, PAGED, KEYDIFF), 30_000, 20, 7),
    # what is kept or read, and how heads divide it
    "inside-qwen": Study(QWEN, LATER_TASKS, crossed(("4x",), OURS, PAGED), (4096,), count=10, seed=7),
    "pages-longbench-qwen": _longbench(crossed(("4x",), OURS, PAGED)),
    "pages-16-longbench-qwen": _longbench([Cell(PAGED, "4x")]),
    "heads-longbench-qwen": _longbench(crossed(("4x",), *(KVChoice(heads=heads) for heads in DIVIDED))),
    "heads-qwen": Study(QWEN, LATER_TASKS, divided(), (4096,), ("after",), count=4, seed=4),
    "workspace-qwen": _longbench([Cell(OURS, "4x")]),
    "workspace-passkey-qwen": Study(
        QWEN, ("passkey",), [Cell(OURS, budget) for budget in KEYS], (30_000,), count=10, seed=7
    ),
    # formats of slots
    **_by_format("slots", LATER_TASKS[:3], crossed(BUDGETS, OURS), (2048,), ("inside", "after"), count=6, seed=3),
    **_by_format("reading", ("multifieldqa_en", "2wikimqa", "trec", "lcc"), crossed(BUDGETS, OURS), (4096,), count=3),
    **_by_format("code", ("humaneval",), [FULL], (2048,), count=30),
    **_by_format("chains", ("gsm8k",), [FULL], (2048,), count=40),
}
