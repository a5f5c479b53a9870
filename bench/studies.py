"""studies: the studies that docs/accuracy.md reports. Tasks, cells and prompt counts are fixed here before a run."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, product
from typing import Any

from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.kv import WATCHING, HeadBudgets, KVChoice
from ringkv.base.selectors import TOVA, ExpectedAttention, KeyDiff, KVzip, SnapKV
from ringkv.evaluation.cells import Cell, crossed
from ringkv.evaluation.evaluate import Study

QWEN, SMOLLM2 = "qwen2.5-coder-1.5b", "smollm2"
TRAINED = ("gqa", "moe", "cla2", "mla")
BUDGETS = ("2x", "4x", "8x")
KVPRESS_SELECTOR = SnapKV(window=64, kernel=5, pooling="avg")  # the usual settings of NVIDIA's kvpress
WIDE_SELECTOR = SnapKV(window=64, kernel=31, pooling="max")  # our default when most of the studies ran
KVPRESS, WIDE = KVChoice(select=KVPRESS_SELECTOR), KVChoice(select=WIDE_SELECTOR)
SNAPKV_LONGBENCH = KVChoice(select=SnapKV(window=32, kernel=7, pooling="max"))  # as in SnapKV's own LongBench runner
OURS = KVChoice(select=replace(WIDE_SELECTOR, window=32))  # our default now, which scored better
SNAPKV = replace(KVPRESS, policy="snapkv")
KEYDIFF = KVChoice(select=KeyDiff())
PAGED = KVChoice("arkvale")
KVZIP = KVChoice(select=KVzip())
EXPECTED = KVChoice(select=ExpectedAttention(window=64))
FULL = Cell(KVChoice(policy="full"))
WITHOUT_WINDOW = (TOVA(), KeyDiff(), KVzip())
EASY_NEEDLES = ("niah_single_2", "niah_multikey_1")
STUDIED: tuple[PlaneFormat, ...] = ("plain", "int8", "int4")
SLOTS: Mapping[str, PlaneFormat] = {f"slots-{one}-qwen": one for one in STUDIED}
CODE: Mapping[str, PlaneFormat] = {f"code-{one}-qwen": one for one in STUDIED}
CHAINS: Mapping[str, PlaneFormat] = {f"chains-{one}-qwen": one for one in (*STUDIED, "turbo4", "zipcache")}
READING: Mapping[str, PlaneFormat] = {f"reading-{one}-qwen": one for one in STUDIED}
OPTIONS_OF: Mapping[str, Mapping[str, Any]] = {  # of engines, by study
    **{study: {"kv_format": form} for study, form in {**SLOTS, **CODE, **CHAINS, **READING}.items()},
    **{f"workspace-{one}qwen": {"prefill_workspace": 4096} for one in ("", "passkey-")},
    "lookups-16-qwen": {"kv_page": 16},
    "pages-16-longbench-qwen": {"kv_page": 16},
    "estimate-qwen": {"kv_page": 16, "kv_unread": "estimate"},
    "dropped-qwen": {"kv_page": 16},
    **{f"estimate-{one}-qwen": {"kv_unread": "estimate"} for one in ("32", "later", "longbench", "30k")},
    "estimate-16-30k-qwen": {"kv_page": 16, "kv_unread": "estimate"},
    "layer-later-qwen": {"kv_pages_by": "layer"},
}
OTHER_LATER_TASKS = (
    *("niah_single_1", "niah_single_2", "niah_multikey_1", "niah_multikey_3", "niah_multiquery"),
    *("cwe", "fwe", "qa_1", "qa_2"),
)
READING_TASKS = ("multifieldqa_en", "2wikimqa", "trec", "lcc")
DIVIDED: tuple[HeadBudgets, ...] = ("equal", "adaptive", "global")
LATER_TASKS = ("niah_single_3", "niah_multikey_2", "vt", "niah_multivalue")
LOOKED_UP = ("registers", "dictionary_75", "dictionary_140")
HARD_NEEDLES = ("niah_single_3", "niah_multikey_2", "niah_multivalue")
SLOT_TASKS = ("niah_single_3", "niah_multikey_2", "vt")
NEEDLES = (*EASY_NEEDLES, *HARD_NEEDLES, "niah_single_1", "niah_multikey_3", "niah_multiquery")


def selection_settings(budget: str) -> list[Cell]:
    """Vary each setting of the selection alone. The full cache and kvpress's settings come first."""

    def each() -> Iterator[KVChoice]:
        yield KVPRESS
        yield from (KVChoice(select=one) for one in votes())
        yield from (replace(KVPRESS, sinks=sinks) for sinks in (0, 64))
        yield from (replace(KVPRESS, recent=recent) for recent in (0.05, 0.5))
        yield from (KVChoice(select=one) for one in WITHOUT_WINDOW)
        yield EXPECTED

    def votes() -> Iterator[SnapKV]:
        yield from (replace(KVPRESS_SELECTOR, window=window) for window in (16, 32, 128))
        yield from (replace(KVPRESS_SELECTOR, kernel=kernel) for kernel in (1, 7, 15, 31))
        yield from (replace(KVPRESS_SELECTOR, kernel=kernel, pooling="max") for kernel in (5, 15, 31))
        yield SnapKV(window=32, kernel=7, pooling="max")
        yield replace(KVPRESS_SELECTOR, groups="max")
        yield replace(KVPRESS_SELECTOR, domain="candidates")

    return [FULL, *(Cell(choice, budget) for choice in each())]


def single_prefill_settings(budget: str) -> list[Cell]:
    """Return the settings whose selector needs only one prefill."""
    return [cell for cell in selection_settings(budget) if not cell.choice.select.prefills_twice]


def wide_pooling_settings(budget: str) -> list[Cell]:
    """Vary kernel width, pooling and window together, with kernels that keep whole passages."""
    every = product((31, 63), ("avg", "max"), (16, 32, 64))
    wide = (SnapKV(kernel=kernel, pooling=pooling, window=window) for kernel, pooling, window in every)
    return [FULL, *(Cell(KVChoice(select=one), budget) for one in wide)]


def settings_around_wide(budget: str) -> list[Cell]:
    """Vary each setting of `WIDE` alone, on documents that it was not tuned on."""

    def each() -> Iterator[KVChoice]:
        yield WIDE
        yield from (KVChoice(select=one) for one in votes())
        yield from (replace(WIDE, recent=recent) for recent in (0.05, 0.5))
        yield KVChoice(select=replace(WIDE_SELECTOR, groups="max"))
        yield KVChoice(select=replace(WIDE_SELECTOR, domain="candidates"))
        yield SNAPKV_LONGBENCH
        yield EXPECTED
        yield KVChoice(select=TOVA())

    def votes() -> Iterator[SnapKV]:
        yield from (replace(WIDE_SELECTOR, window=window) for window in (16, 32, 128))
        yield from (replace(WIDE_SELECTOR, kernel=kernel) for kernel in (7, 15))
        yield replace(WIDE_SELECTOR, pooling="avg")

    return [FULL, *(Cell(choice, budget) for choice in each())]


def windows() -> list[Cell]:
    """Return `WIDE` and the same with half the window."""
    return [FULL, *(Cell(choice, budget) for choice in (WIDE, OURS) for budget in ("4x", "8x"))]


def layouts() -> list[Cell]:
    """Return our layout and the paper's, for prompts that fit whole and answers longer than the remaining entries."""
    both = KVChoice(), KVChoice(elastic=False)
    return [
        FULL,
        *(Cell(choice, budget) for budget in ("192", "256", "384") for choice in both),
    ]


def watched() -> list[Cell]:
    """Return our ring and the policies that watch decoding, for answers longer than the remaining entries."""
    each = ([Cell(KVChoice(), budget), *watching(budget)] for budget in ("192", "256", "384"))
    return [FULL, *chain.from_iterable(each)]


def watching(budget: str) -> list[Cell]:
    """Return the policies that watch decoding."""
    return [Cell(KVChoice(policy), budget) for policy in WATCHING]


def calibrated() -> list[Cell]:
    """Return our ring and the policy that a calibration tells what queries to expect, as `watched` does."""
    choices = (KVChoice(), KVChoice("triattention"))
    return [FULL, *(Cell(choice, budget) for budget in ("192", "256", "384") for choice in choices)]


def long_answers(*budgets: str) -> list[Cell]:
    """Return policies for short prompts whose long answers wrap the ring, with and without selected entries."""
    return crossed(("full", "streaming", "snapstream"), budgets, KVChoice())


def policies(*ours: KVChoice) -> list[Cell]:
    """Return streaming, SnapKV and SnapStream with kvpress's settings, and SnapStream with ours, at each budget."""
    return [FULL, *_at_each_budget(KVChoice(policy="streaming"), SNAPKV, KVPRESS, *ours)]


def policies_and_keydiff() -> list[Cell]:
    """Add KeyDiff, which uses no queries and so suits questions that come after compression."""
    return [*policies(WIDE), *_at_each_budget(KEYDIFF)]


def default_and_others() -> list[Cell]:
    """Return our default and its alternatives."""
    return [FULL, *_at_each_budget(KVChoice(policy="streaming"), KVPRESS, OURS, KEYDIFF)]


def shares() -> list[Cell]:
    """Return the full cache and our default at each budget."""
    return [FULL, *_at_each_budget(KVChoice())]


def divided() -> list[Cell]:
    """Return our default and KeyDiff at half of the prompt, by what heads divide; then what else weighs or divides."""
    choices = (replace(choice, heads=heads) for choice in (KVChoice(), KEYDIFF) for heads in DIVIDED)
    zips = (replace(KVZIP, heads=heads) for heads in ("equal", "global", "profile"))
    others = KVChoice(heads="pyramid"), KVChoice(heads="profile"), KVChoice(weigh="values"), *zips
    return [FULL, *(Cell(choice, "2x") for choice in (*choices, *others))]


def later(*budgets: str) -> list[Cell]:
    """Return the full cache, pages that steps read of it, and KeyDiff, for questions in the next turn."""
    return [FULL, *(Cell(choice, budget) for budget in budgets for choice in (PAGED, KEYDIFF))]


def divided_at_a_quarter() -> list[Cell]:
    """Return our default at a quarter of the prompt, by what heads divide, and with values that weigh votes."""
    heads: tuple[HeadBudgets, ...] = (*DIVIDED, "pyramid", "profile")
    weighed = (KVChoice(weigh="values", heads=one) for one in ("equal", "global"))
    return [FULL, *(Cell(choice, "4x") for choice in (*(KVChoice(heads=one) for one in heads), *weighed))]


def at_a_quarter() -> list[Cell]:
    """Return the full cache, and a quarter kept or read in pages."""
    return [FULL, Cell(KVChoice(), "4x"), Cell(PAGED, "4x")]


def in_conversations() -> list[Cell]:
    """Return the full cache, pages, and what evicts, for a question that follows another one."""
    return [FULL, *(Cell(choice, "2x") for choice in (KVChoice(), KEYDIFF, PAGED)), Cell(PAGED, "4x")]


def at_16k() -> list[Cell]:
    """Return the full cache, and our default, KeyDiff and pages at a half and a quarter."""
    return [FULL, *(Cell(choice, budget) for budget in ("2x", "4x") for choice in (KVChoice(), KEYDIFF, PAGED))]


def small_models() -> list[Cell]:
    """Return streaming, SnapStream, and SnapStream with one selection for all heads of a layer, at each budget."""
    choices = (KVChoice(policy="streaming"), KVChoice(), KVChoice(select=TOVA()))
    return [FULL, *_at_each_budget(*choices)]


def _trained(variant: str) -> Study:
    """Return the study of a model that `python -m examples.train VARIANT --out trained/VARIANT` makes."""
    places = ("inside", "after")
    return Study(f"trained/{variant}", ("recall",), small_models(), (2048,), places, count=100, seed=1)


def _at_each_budget(*choices: KVChoice) -> list[Cell]:
    return [Cell(choice, budget) for budget in BUDGETS for choice in choices]


ABOUT: Mapping[str, str] = {
    "choosing-qwen": "Selection: each setting varied alone, at a quarter of the prompt, Qwen2.5-Coder-1.5B",
    "choosing-hard-qwen": "Selection: each setting varied alone, on needles that are hard to keep",
    "choosing-wide-qwen": "Selection: wide pooling and windows together, at an eighth, on hard needles",
    "choosing-longbench-qwen": "Selection: each of our settings varied alone, at a quarter, on LongBench",
    "choosing-window-qwen": "Selection: a window of 64 or of 32, on RULER's prompts of another seed",
    "choosing-smollm2": "Selection: each setting varied alone, on SmolLM2-135M, at half of shorter prompts",
    "layouts-qwen": "Our elastic layout and the paper's, on short problems with long answers, Qwen2.5-Coder-1.5B",
    "watching-qwen": "Our ring and policies that watch decoding, on long answers, Qwen2.5-Coder-1.5B",
    "default-qwen": "Our default on RULER's needles, in prompts that no setting was tuned on, Qwen2.5-Coder-1.5B",
    "ruler-smollm2": "RULER on SmolLM2-135M, which is too small for most of it",
    "ruler-qwen": "RULER on Qwen2.5-Coder-1.5B",
    "long-qwen": "Needles and chains of names in prompts of 16k and 30k, Qwen2.5-Coder-1.5B",
    "longbench-qwen": "LongBench on Qwen2.5-Coder-1.5B",
    "longbench-v2-qwen": "LongBench-v2's choices, prompts of 10k to 16k, Qwen2.5-Coder-1.5B",
    "documents-qwen": "LongEval's topics and passkeys on Qwen2.5-Coder-1.5B",
    "writing-qwen": "Programs of HumanEval and of LeetCode's contests, written with a small ring, Qwen2.5-Coder-1.5B",
    "aime-qwen": "AIME24, whose answers wrap the ring or are reviewed, Qwen2.5-Coder-1.5B",
    **{f"trained-{one}": f"Recall on a small {one.upper()} model, trained by examples/train" for one in TRAINED},
    "later-qwen": "RULER with the question in the next turn, Qwen2.5-Coder-1.5B",
    "later-others-qwen": "RULER's other nine tasks with the question in the next turn, Qwen2.5-Coder-1.5B",
    "conversation-qwen": "Registers in 4k, asked after another question was answered, Qwen2.5-Coder-1.5B",
    "topics-qwen": "LongEval's topics, a quarter kept or read in pages, Qwen2.5-Coder-1.5B",
    "inside-qwen": "RULER with the question in the prompt, a quarter kept or read in pages, Qwen2.5-Coder-1.5B",
    "calibrated-qwen": "Our ring and TriAttention, on the problems of watching-qwen, Qwen2.5-Coder-1.5B",
    "ruler-16k-qwen": "RULER in prompts of 16k, half or a quarter kept or read in pages, Qwen2.5-Coder-1.5B",
    "lookups-qwen": "Look-ups in hundreds of similar entries, questions in the next turn, Qwen2.5-Coder-1.5B",
    "lookups-16-qwen": "Look-ups of lookups-qwen in pages of 16 entries, Qwen2.5-Coder-1.5B",
    "estimate-qwen": "140 other UUIDs, a quarter read in pages of 16, unread pages estimated, Qwen2.5-Coder-1.5B",
    "estimate-32-qwen": "UUIDs of estimate-qwen in pages of 32 entries, unread pages estimated, Qwen2.5-Coder-1.5B",
    "estimate-later-qwen": "RULER of later-qwen, unread pages estimated, Qwen2.5-Coder-1.5B",
    "layer-later-qwen": "RULER of later-qwen, pages selected for all heads of a layer, Qwen2.5-Coder-1.5B",
    "estimate-longbench-qwen": "LongBench of pages-longbench-qwen, unread pages estimated, Qwen2.5-Coder-1.5B",
    "dropped-qwen": "UUIDs of estimate-qwen, a quarter read in pages of 16, unread pages dropped, Qwen2.5-Coder-1.5B",
    "estimate-30k-qwen": "Pass keys of passkeys-30k-qwen, unread pages estimated, Qwen2.5-Coder-1.5B",
    "estimate-16-30k-qwen": "Pass keys of estimate-30k-qwen in pages of 16 entries, Qwen2.5-Coder-1.5B",
    "pages-16-longbench-qwen": "LongBench of pages-longbench-qwen in pages of 16 entries, Qwen2.5-Coder-1.5B",
    "pages-longbench-qwen": "LongBench with a quarter kept or read in pages, Qwen2.5-Coder-1.5B",
    "heads-longbench-qwen": "LongBench with a quarter kept, heads that divide the entries, Qwen2.5-Coder-1.5B",
    "workspace-qwen": "LongBench in a workspace of 4k, the prompts of pages-longbench-qwen, Qwen2.5-Coder-1.5B",
    "workspace-passkey-qwen": "Pass keys of passkey-30k-qwen in a workspace of 4k, Qwen2.5-Coder-1.5B",
    "passkeys-8k-qwen": "Pass keys in 8k, questions in the next turn, Qwen2.5-Coder-1.5B",
    "passkeys-30k-qwen": "Pass keys in 30k, questions in the next turn, Qwen2.5-Coder-1.5B",
    "passkey-30k-qwen": "A pass key in each of 20 texts of 30k, questions in the next turn, Qwen2.5-Coder-1.5B",
    "heads-qwen": "RULER with the question later, heads that divide the entries, Qwen2.5-Coder-1.5B",
    **{study: f"RULER with slots in {form}, by budget, Qwen2.5-Coder-1.5B" for study, form in SLOTS.items()},
    **{study: f"LongBench with slots in {form}, by budget, Qwen2.5-Coder-1.5B" for study, form in READING.items()},
    **{study: f"HumanEval with slots in {form}, Qwen2.5-Coder-1.5B" for study, form in CODE.items()},
    **{study: f"GSM8K with slots in {form}, Qwen2.5-Coder-1.5B" for study, form in CHAINS.items()},
    "wikitext": "Perplexity of the text after a compressed prefix, SmolLM2-135M",
}
STUDIES: Mapping[str, Study] = {
    "choosing-qwen": Study(QWEN, EASY_NEEDLES, selection_settings("4x"), (4096,), ("inside", "after"), count=10),
    "choosing-hard-qwen": Study(QWEN, HARD_NEEDLES, single_prefill_settings("4x"), (4096,), count=10),
    "choosing-wide-qwen": Study(QWEN, HARD_NEEDLES, wide_pooling_settings("8x"), (4096,), count=5),
    "choosing-longbench-qwen": Study(QWEN, ("longbench",), settings_around_wide("4x"), (8192,), count=10),
    "choosing-window-qwen": Study(QWEN, ("ruler",), windows(), (4096,), count=4, seed=1),
    "choosing-smollm2": Study(SMOLLM2, EASY_NEEDLES, selection_settings("2x"), (2048,), ("inside", "after"), count=20),
    "layouts-qwen": Study(QWEN, ("gsm8k",), layouts(), (2048,), count=40),
    "watching-qwen": Study(QWEN, ("gsm8k",), watched(), (2048,), count=30),
    "calibrated-qwen": Study(QWEN, ("gsm8k",), calibrated(), (2048,), count=40),
    "default-qwen": Study(QWEN, NEEDLES, default_and_others(), (4096,), count=5, seed=2),
    "ruler-smollm2": Study(SMOLLM2, ("ruler",), policies(WIDE, OURS), (4096,), ("inside", "after"), count=10),
    "ruler-qwen": Study(QWEN, ("ruler",), policies_and_keydiff(), (4096,), ("inside", "after"), count=10),
    "long-qwen": Study(QWEN, ("niah_multikey_2", "vt"), policies_and_keydiff(), (16_384, 30_000), count=2),
    "longbench-qwen": Study(QWEN, ("longbench",), policies_and_keydiff(), (8192,), count=10),
    "longbench-v2-qwen": Study(QWEN, ("longbench_v2",), policies(WIDE), (16_384,), count=20),
    "documents-qwen": Study(QWEN, ("longeval", "passkey"), policies(WIDE), (8192,), count=5),
    "writing-qwen": Study(QWEN, ("humaneval", "leetcode"), long_answers("256", "384"), (2048,), count=20),
    "aime-qwen": Study(QWEN, ("aime24",), [*long_answers("512"), *watching("512")], (2048,), count=30),
    **{f"trained-{one}": _trained(one) for one in TRAINED},
    "later-qwen": Study(QWEN, LATER_TASKS, later("2x", "4x"), (4096,), ("next",), count=10, seed=7),
    "later-others-qwen": Study(
        QWEN, OTHER_LATER_TASKS, [FULL, Cell(PAGED, "2x"), Cell(PAGED, "4x")], (4096,), ("next",), count=5, seed=7
    ),
    "conversation-qwen": Study(QWEN, ("conversation",), in_conversations(), (4096,), ("next",), count=20, seed=13),
    "topics-qwen": Study(QWEN, ("longeval",), at_a_quarter(), (8192,), count=5),
    "inside-qwen": Study(QWEN, LATER_TASKS, at_a_quarter(), (4096,), count=10, seed=7),
    "ruler-16k-qwen": Study(QWEN, LATER_TASKS, at_16k(), (16_384,), ("inside", "next"), count=2, seed=11),
    "lookups-qwen": Study(QWEN, LOOKED_UP, later("2x", "4x"), (10_240,), ("next",), count=10, seed=8),
    "lookups-16-qwen": Study(QWEN, LOOKED_UP, later("4x"), (10_240,), ("next",), count=30, seed=8),
    "estimate-qwen": Study(
        QWEN, ("dictionary_140",), [FULL, Cell(PAGED, "4x")], (10_240,), ("next",), count=30, seed=12
    ),
    **dict.fromkeys(
        ("dropped-qwen", "estimate-32-qwen"),
        Study(QWEN, ("dictionary_140",), [Cell(PAGED, "4x")], (10_240,), ("next",), count=30, seed=12),
    ),
    **dict.fromkeys(
        ("estimate-later-qwen", "layer-later-qwen"),
        Study(QWEN, LATER_TASKS, [Cell(PAGED, one) for one in ("2x", "4x")], (4096,), ("next",), count=10, seed=7),
    ),
    **dict.fromkeys(
        ("estimate-30k-qwen", "estimate-16-30k-qwen"),
        Study(QWEN, ("passkeys",), [Cell(PAGED, "1024"), Cell(PAGED, "512")], (30_000,), ("next",), count=20, seed=7),
    ),
    "pages-longbench-qwen": Study(QWEN, ("longbench",), at_a_quarter(), (8192,), count=26, seed=9),
    **dict.fromkeys(
        ("pages-16-longbench-qwen", "estimate-longbench-qwen"),
        Study(QWEN, ("longbench",), [Cell(PAGED, "4x")], (8192,), count=26, seed=9),
    ),
    "heads-longbench-qwen": Study(QWEN, ("longbench",), divided_at_a_quarter(), (8192,), count=26, seed=9),
    "workspace-qwen": Study(QWEN, ("longbench",), [Cell(KVChoice(), "4x")], (8192,), count=26, seed=9),
    "passkeys-8k-qwen": Study(QWEN, ("passkeys",), later("1024", "512"), (8192,), ("next",), count=20, seed=7),
    "passkeys-30k-qwen": Study(QWEN, ("passkeys",), later("1024", "512"), (30_000,), ("next",), count=20, seed=7),
    "passkey-30k-qwen": Study(QWEN, ("passkey",), later("1024", "512"), (30_000,), ("next",), count=20, seed=7),
    "workspace-passkey-qwen": Study(
        QWEN, ("passkey",), [Cell(KVChoice(), one) for one in ("1024", "512")], (30_000,), count=10, seed=7
    ),
    "heads-qwen": Study(QWEN, LATER_TASKS, divided(), (4096,), ("after",), count=4, seed=4),
    **{study: Study(QWEN, SLOT_TASKS, shares(), (2048,), ("inside", "after"), count=6, seed=3) for study in SLOTS},
    **{study: Study(QWEN, READING_TASKS, shares(), (4096,), count=3) for study in READING},
    **{study: Study(QWEN, ("humaneval",), [FULL], (2048,), count=30) for study in CODE},
    **{study: Study(QWEN, ("gsm8k",), [FULL], (2048,), count=40) for study in CHAINS},
    "wikitext": Study(SMOLLM2, ("wikitext",), policies(WIDE, OURS), (2048, 4096, 7936), count=10),
}
