"""What a study recommends, against the engines that the recommended flags start."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringkv import LLM
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.evaluation.cells import Cell, crossed
from ringkv.evaluation.journal import Record
from ringkv.evaluation.offers import Offer, Served, advise, choose, offers
from ringkv.models.config import load_config
from ringkv.plan.choose_kv import settings
from ringkv.plan.footprint import read_bytes
from ringkv.plan.head_profile import HeadProfile, heads_of
from ringkv.plan.options import Options
from ringkv.plan.report import PlanRequest, report
from ringkv.plan.shapes import Shape
from tests import chat_model
from tests.refusals import refusal

OPTIONS = Options(dtype="float32", kv_window=8, kv_page=16, graphs="off", threads=2)
CELLS = crossed(("full", "snapstream", "arkvale"), ("4x", "256"), KVChoice(select=SnapKV(window=8)))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = chat_model.save(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)
    return Served(str(folder), folder, load_config(folder), OPTIONS)


def record(task: str, sample: int, cell: Cell, score: float | None, place: str = "inside") -> Record:
    return Record(task, place, str(sample), cell.label, score, prompt_tokens=900 + sample)


def answers(scores: dict[str, float], count: int = 60, cells: list[Cell] = CELLS) -> list[Record]:
    """One task whose full scores are 1, and each other cell's as given."""
    return [record("vt", n, cell, scores.get(cell.choice.policy, 1.0)) for n in range(count) for cell in cells]


OTHERS: dict[str, Any] = {"slots": 1, "graphs": "off", "threads": 2, "prefix_store": 0}


def test_an_offers_flags_start_an_engine_whose_slots_have_its_bytes(served: Served) -> None:
    for one in offers(served, CELLS, answers({})):
        flags = dict(zip(one.flags[::2], one.flags[1::2], strict=True))
        renamed = {"--max-prompt": "prompt_tokens"}
        given = {renamed.get(flag, flag[2:].replace("-", "_")): value for flag, value in flags.items()}
        llm = LLM(**{name: int(value) if value.isdecimal() else value for name, value in given.items()}, **OTHERS)
        assert llm.limits.slot_bytes == pytest.approx(one.slot_bytes, abs=200), one.cell
        assert flags["--max-prompt"] == "1024"
        policy, *budget = one.cell.split(" window")[0].split()
        assert (flags["--kv-policy"], "--kv-page" in flags) == (policy, policy == "arkvale")
        held = 256 if policy != "full" else llm.limits.capacity
        assert llm.config.kv.budget == held
        digests = one.slot_bytes - llm.limits.capacity * llm.limits.entry_bytes
        assert one.read_bytes == held * llm.limits.entry_bytes + digests
        assert (budget == []) == (policy == "full")


def test_what_loses_least_in_next_turns_starts_an_engine_that_continues_them(served: Served) -> None:
    usual = replace(served, options=replace(OPTIONS, kv_window=None, kv_page=None))
    cells = usual.in_next_turns(("256",))
    answered = [replace(one, place="next") for one in answers({}, cells=cells)]
    full, lasting = offers(usual, cells, answered)
    flags = dict(zip(lasting.flags[::2], lasting.flags[1::2], strict=True))
    assert (flags["--kv-select"], flags["--kv-heads"], flags["--kv-turns"]) == ("kvzip", "global", "continue")
    assert "--kv-select" not in full.flags
    settings: dict[str, Any] = {flag[2:].replace("-", "_"): flags[flag] for flag in flags if flag.startswith("--kv")}
    settings |= {"kv_budget": 256, "prompt_tokens": 1024, "dtype": "float32"}
    llm = LLM(str(served.folder), **settings, **{**OTHERS, "prefix_store": "10MB"})
    assert llm.limits.slot_bytes == lasting.slot_bytes
    assert served.in_next_turns(("256",)) == []  # its options say how tokens are selected


@pytest.mark.parametrize("named", [{"kv_page": 16}, {"kv_tier": "/tmp"}])
def test_no_other_slots_are_studied_if_pages_are_named(served: Served, named: dict[str, Any]) -> None:
    """Slots without pages refuse these settings."""
    options = replace(OPTIONS, kv_window=None, kv_page=None)
    assert replace(served, options=options).in_next_turns(("256",))
    assert replace(served, options=replace(options, **named)).in_next_turns(("256",)) == []


def test_what_an_offer_holds_and_reads_is_what_the_plan_says(served: Served, tmp_path: Path) -> None:
    cells = [*crossed(("full", "scissorhands"), ("256",), KVChoice()), Cell(KVChoice("arkvale"), "256")]
    on_disk = replace(served, options=replace(OPTIONS, kv_tier=str(tmp_path)))
    shape = Shape.of(served.config, "tiny")
    for one, cell in zip(offers(on_disk, cells, answers({}, cells=cells)), cells, strict=True):
        pages = {"kv_page": 16, "kv_tier": str(tmp_path)} if cell.choice.reads_pages else {}
        options = {"kv_policy": cell.choice.policy, "kv_budget": None if cell.budget is None else 256, **pages}
        request = PlanRequest(tokens=2048, prompt_tokens=1024, dtype="float32", **options)
        row = report(shape, request).rows[-1]
        assert one.slot_bytes == row.slot_bytes + row.file_bytes
        assert one.read_bytes == row.step_bytes - read_bytes(shape, "bfloat16"), one.cell


def test_points_lost_are_means_over_tasks_of_prompts_that_both_have_answered(served: Served) -> None:
    full, compressed = CELLS[0], CELLS[1]
    records = [record("vt", n, cell, 1.0) for n in range(6) for cell in (full, compressed)]
    records += [record("fwe", n, full, 0.5) for n in range(36)]
    records += [record("fwe", n, compressed, score) for n, score in enumerate((0.0, 0.5, 0.0, None) * 9)]
    whole, found = offers(served, CELLS, records)
    assert (whole.lost, whole.score, whole.prompts) == (None, 75.0, 42)
    assert found.lost == pytest.approx((0 + 100 * (0.5 + 0 + 0.5) / 3) / 2)
    assert found.least_lost is not None
    assert found.most_lost is not None
    assert found.least_lost <= found.lost <= found.most_lost


def test_a_prompt_that_only_the_full_cache_can_answer_is_lost(served: Served) -> None:
    records = [replace(one, score=None, error="too small") if _fails(one) else one for one in answers({})]
    _, found, *_ = offers(served, CELLS, records)
    assert (found.prompts, found.score, found.lost) == (60, 50.0, 50.0)


def _fails(one: Record) -> bool:
    return one.cell == CELLS[1].label and int(one.sample) < 30


def test_a_cell_that_cannot_be_or_has_no_answers_has_no_offer(served: Served) -> None:
    tiny = Cell(KVChoice("snapkv", select=SnapKV(window=8)), "4")
    found = offers(served, [*CELLS[:2], tiny], answers({}, cells=[*CELLS[:2], tiny]))
    assert [one.cell for one in found] == [cell.label for cell in CELLS[:2]]
    assert [one.cell for one in offers(served, CELLS, answers({}, cells=CELLS[:1]))] == ["full"]


@pytest.mark.parametrize(("count", "most"), [(30, 10.0), (60, 5.0)])
def test_equal_answers_bound_a_loss_by_the_rule_of_three(served: Served, count: int, most: float) -> None:
    _, found, *_ = offers(served, CELLS, answers({}, count=count))
    assert (found.lost, found.least_lost, found.most_lost) == (0.0, 0.0, most)


def test_six_prompts_are_too_few_for_advice_even_if_all_answers_are_equal(served: Served) -> None:
    found = advise(served, CELLS, answers({}, count=6), most_lost=5, costs={})
    assert (found.chosen.cell, found.offers[1].lost, found.offers[1].most_lost) == ("full", 0.0, None)
    assert found.why.startswith("6 prompts")


def test_the_advice_is_a_command_that_serves(served: Served) -> None:
    found = advise(served, CELLS, answers({"snapstream": 0.9, "arkvale": 1.0}), most_lost=5, costs={})
    assert found.chosen.cell == "arkvale 4x window=8"  # it holds no less than full, and reads less
    assert found.command.endswith("--dtype float32 --kv-page 16")
    found = advise(served, CELLS, answers({"snapstream": 0.99}), most_lost=7, costs={})
    assert found.chosen.cell == "snapstream 4x window=8"
    assert shlex.split(found.command)[:2] == ["ringkv", "serve"]
    assert found.command.endswith(
        "--kv-policy snapstream --kv-compression 4x --max-prompt 1024 --kv-window 8 --dtype float32"
    )


def test_every_command_continues_conversations_if_questions_were_in_the_next_turn(served: Served) -> None:
    records = [record("vt", n, cell, 1.0, place) for n in range(6) for cell in CELLS for place in ("inside", "next")]
    assert ["--kv-turns continue" in " ".join(one.flags) for one in offers(served, CELLS, records)] == [True] * 5
    assert not any("--kv-turns" in one.flags for one in offers(served, CELLS, answers({})))


def test_a_command_names_the_profile_that_heads_were_measured_by(served: Served, tmp_path: Path) -> None:
    path = tmp_path / "heads of code.json"
    HeadProfile("text", 1, (tuple((1.0,) * heads for heads in heads_of(served.config)),)).write(path)
    options = replace(OPTIONS, kv_page=None, kv_heads="profile", kv_profile=str(path))
    cells = crossed(("full", "snapstream"), ("4x",), settings(options))
    by_profile = replace(served, options=options)
    assert by_profile.usable(("full", "snapstream", "arkvale")) == ["full", "snapstream"]
    full, compressed = offers(by_profile, cells, answers({}, cells=cells))
    assert not {"--kv-heads", "--kv-profile", "--kv-window"} & set(full.flags)
    found = advise(by_profile, cells, answers({}, cells=cells), most_lost=5, costs={})
    assert found.chosen == compressed
    assert f"--kv-heads profile --kv-profile '{path}'" in found.command


def test_without_an_answer_of_the_full_cache_there_is_no_advice(served: Served) -> None:
    with refusal("minutes", "no answer"):
        advise(served, CELLS, answers({}, cells=CELLS[1:]), most_lost=5, costs={})


def test_policies_that_a_model_cannot_have_are_left_out(served: Served) -> None:
    encoded = Served(served.model, served.folder, served.config, Options(kv_format="zipcache", kv_format_skip=0))
    assert encoded.usable(("full", "snapstream", "arkvale")) == ["full", "snapstream"]
    assert served.usable(("full", "arkvale")) == ["full", "arkvale"]  # kv_page is for arkvale alone


def test_options_that_the_full_cache_cannot_have_are_refused_with_the_reason(served: Served) -> None:
    half = replace(served, options=replace(OPTIONS, dtype="float16"))
    with refusal("dtype", "float16"):
        half.usable(("full", "snapstream", "arkvale"))


FULL = Offer("full", 20, 80.0, None, None, None, slot_bytes=800, read_bytes=800, flags=())
HALF = Offer("half", 20, 79.0, 1.0, -1.0, 4.9, slot_bytes=400, read_bytes=400, flags=())
PAGED = Offer("paged", 20, 80.0, 0.0, -1.0, 1.0, slot_bytes=850, read_bytes=200, flags=())


def test_the_fewest_bytes_that_surely_lose_little_are_chosen() -> None:
    quarter = replace(HALF, cell="quarter", slot_bytes=200, read_bytes=200, lost=0.0, most_lost=5.1)
    chosen, why = choose([FULL, HALF, quarter, PAGED], 5.0)
    assert chosen == HALF
    assert "lose at most 5 points at 95% confidence" in why
    assert choose([FULL, HALF, quarter, PAGED], most_lost=5.1)[0] == quarter


def test_a_cache_that_holds_every_token_and_reads_less_is_better_than_the_full_one() -> None:
    assert choose([FULL, PAGED], 5.0)[0] == PAGED
    assert choose([FULL, replace(PAGED, read_bytes=751)], 5.0)[0] == FULL


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (replace(HALF, most_lost=5.1), "no other cache is sure to lose at most 5 points"),
        (replace(HALF, least_lost=None, most_lost=None), "20 prompts are too few"),
    ],
)
def test_without_evidence_the_full_cache_is_chosen(other: Offer, why: str) -> None:
    chosen, found = choose([FULL, other], 5.0)
    assert chosen == FULL
    assert why in found


def test_a_score_of_0_has_nothing_to_lose() -> None:
    chosen, why = choose([replace(FULL, score=0.0), replace(HALF, score=0.0, lost=0.0)], 5.0)
    assert chosen.cell == "full"
    assert why.startswith("it scores 0")
