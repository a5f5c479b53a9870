"""A whole study on a tiny random model whose tokens are bytes: its prompts, answers and report."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from ringkv import LLM, SamplingParams
from ringkv.base.engine import PrefillChunk
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.evaluation import costs, journal
from ringkv.evaluation import evaluate as module
from ringkv.evaluation.cells import Cell, crossed
from ringkv.evaluation.evaluate import Study, evaluate
from ringkv.evaluation.prompt import PromptBuilder
from ringkv.evaluation.report import sections, write
from ringkv.evaluation.tasks.catalogue import TASKS
from ringkv.evaluation.tasks.source import Source
from ringkv.models.config import load_config
from ringkv.plan.choose_kv import settings
from ringkv.plan.head_profile import HeadProfile, heads_of
from ringkv.plan.options import Options
from tests import chat_model
from tests.engine import tiny
from tests.refusals import refusal

CELLS = crossed(("full", "streaming", "snapkv", "snapstream"), ("2x", "4x"), KVChoice(select=SnapKV(window=8)))
OPTIONS = Options(slots=5, dtype="float32", graphs="off", threads=2)
LENGTH = 640


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model.save(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)


@pytest.fixture(scope="module")
def study(folder: Path) -> Study:
    return Study(str(folder), ("niah_single_1", "vt"), CELLS, (LENGTH,), ("inside", "after"), count=2)


@pytest.fixture(scope="module")
def done(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("answers")
    assert evaluate(study, OPTIONS, to) == []
    return to


def records(to: Path) -> list[journal.Record]:
    return list(journal.read(to / journal.NAME))


def test_every_prompt_and_cell_is_answered_once(study: Study, done: Path) -> None:
    found = Counter(one.key for one in records(done))
    assert set(found.values()) == {1}
    assert len(found) == 2 * 2 * 2 * len(CELLS)  # tasks, prompts, places


def test_an_answer_equals_that_of_the_python_api(study: Study, done: Path) -> None:
    folder = Path(study.model)
    prompts = PromptBuilder(folder, LENGTH, 4096)
    (sample, _) = TASKS["vt"].samples(Source((LENGTH,), 2, 0, None, prompts.count_tokens))
    tokens = list(prompts.make(sample, "inside").tokens)
    llm = LLM(
        folder, slots=2, kv_budget=LENGTH, kv_window=8, prompt_tokens=LENGTH, dtype="float32", graphs="off", threads=2
    )
    (cell,) = [cell for cell in CELLS if cell.label == "snapstream 4x window=8"]
    result = llm.generate([tokens], SamplingParams(max_tokens=sample.answer_tokens), kv=cell.of(len(tokens), 60))[0]
    (ours,) = [one for one in records(done) if one.key == ("vt", "inside", f"{LENGTH}/0", cell.label)]
    assert ours.text == llm.tokenizer.decode(result.token_ids)
    assert (ours.kept, ours.prompt_tokens) == (len(tokens) // 4, len(tokens))


def test_a_question_after_compression_is_not_in_what_was_compressed(done: Path) -> None:
    by_place = {place: [one for one in records(done) if one.place == place] for place in ("inside", "after")}
    for inside, after in zip(by_place["inside"], by_place["after"], strict=True):
        assert after.prompt_tokens < inside.prompt_tokens


def test_a_question_in_the_next_turn_continues_from_the_entries_that_the_first_turn_kept(
    folder: Path, tmp_path: Path
) -> None:
    choice = KVChoice("streaming", sinks=2, turns="continue")
    study = Study(str(folder), ("vt",), [Cell(choice, "4x"), Cell(KVChoice("arkvale"), "2x")], (LENGTH,), ("next",), 4)
    evaluate(study, replace(OPTIONS, slots=2), tmp_path)
    prompts = PromptBuilder(folder, LENGTH, 4096)
    sample, _ = TASKS["vt"].samples(Source((LENGTH,), 2, 0, None, prompts.count_tokens))
    after = prompts.make(sample, "after")
    context, tokens = list(after.tokens), list(after.tokens + after.forced)
    llm = LLM(folder, slots=1, kv_budget=640, prompt_tokens=1024, dtype="float32", graphs="off", prefix_store="64MB")
    kv = replace(choice, budget=len(context) // 4)
    llm.generate([context], SamplingParams(max_tokens=1), kv=kv)
    second = llm.generate([tokens], SamplingParams(max_tokens=sample.answer_tokens, temperature=0.0), kv=kv)[0]
    assert second.usage.cached_tokens == len(context)
    ours = {one.cell: one for one in records(tmp_path) if one.sample == f"{LENGTH}/0"}
    assert ours[study.cells[0].label].text == llm.tokenizer.decode(second.token_ids)
    assert all(one.error is None and one.prompt_tokens == len(tokens) for one in ours.values())


def test_a_prompt_with_the_question_inside_is_not_what_a_next_turn_continues_from(folder: Path, tmp_path: Path) -> None:
    """The question is longer than a block of the prefix store, which so has more than the first turn."""
    cells = crossed(("full", "streaming"), ("4x",), KVChoice(sinks=2))
    evaluate(Study(str(folder), ("vt",), cells, (LENGTH,), ("inside", "next"), 2), OPTIONS, tmp_path)
    assert [one.error for one in records(tmp_path)] == [None] * 2 * 2 * len(cells)


def test_a_stopped_run_resumes_with_nothing_lost_or_repeated(study: Study, done: Path, tmp_path: Path) -> None:
    lines = (done / journal.NAME).read_text().splitlines(keepends=True)
    (tmp_path / journal.NAME).write_text("".join(lines[:17]) + lines[17][:30])
    evaluate(study, OPTIONS, tmp_path)
    assert (tmp_path / journal.NAME).read_text().startswith("".join(lines[:17]))
    assert sorted(map(repr, records(tmp_path))) == sorted(map(repr, records(done)))


def test_a_finished_run_builds_no_engine_and_more_can_be_added(
    study: Study, done: Path, tmp_path: Path, monkeypatch
) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / journal.NAME).write_bytes((done / journal.NAME).read_bytes())
    evaluate(replace(study, tasks=("niah_single_1", "vt", "fwe"), places=("inside",)), OPTIONS, tmp_path)
    assert Counter(one.task for one in records(tmp_path))["fwe"] == 2 * len(CELLS)
    monkeypatch.setattr(module, "_engine", lambda *_: pytest.fail("an engine was built for nothing"))
    evaluate(study, OPTIONS, tmp_path)


def test_answers_to_other_prompts_of_the_same_name_are_not_mixed(study: Study, tmp_path: Path) -> None:
    smaller = replace(study, tasks=("wikitext",), lengths=(1024,), cells=CELLS[:1], count=1)
    for text in ("ring ", "slot "):
        (tmp_path / text.strip() / "text").mkdir(parents=True)
        (tmp_path / text.strip() / "text" / "wikitext-2_test.txt").write_text(text * 2000)
    evaluate(replace(smaller, data=tmp_path / "ring"), OPTIONS, tmp_path)
    with pytest.raises(InvalidRequest, match="1024/0 of wikitext"):
        evaluate(replace(smaller, data=tmp_path / "slot"), OPTIONS, tmp_path)


def test_the_common_prefix_of_two_places_is_prefilled_once_with_the_same_answers(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: Counter[str] = Counter()

    def counted(engine: LocalEngine, chunks: Sequence[PrefillChunk], feed: bool = False) -> Any:
        for chunk in chunks:
            read[chunk.request.id.split("/")[0]] += chunk.stop - chunk.start
        return prefill(engine, chunks, feed)

    prefill = LocalEngine.prefill
    monkeypatch.setattr(LocalEngine, "prefill", counted)
    smaller, second = replace(study, tasks=("vt",), count=1), []
    for store in (None, 0):
        evaluate(smaller, replace(OPTIONS, prefix_store=store), tmp_path / str(store))
        second.append(read["1"])
        read.clear()
    assert second[0] < 0.3 * second[1]
    assert sorted(map(repr, records(tmp_path / "None"))) == sorted(map(repr, records(tmp_path / "0")))


@pytest.mark.parametrize("options", [{"kv_select": "keydiff"}])
def test_a_study_with_another_selector_stages_queries_for_all_its_cells(
    study: Study, tmp_path: Path, options: dict[str, Any]
) -> None:
    chosen = replace(OPTIONS, **options)
    cells = [*crossed(("snapstream",), ("4x",), settings(chosen)), *crossed(("snapkv",), ("4x",), KVChoice())]
    evaluate(replace(study, tasks=("vt",), cells=cells, count=1, places=("inside",)), chosen, tmp_path)
    found = {one.cell: one.error for one in records(tmp_path)}
    assert found == {cell.label: None for cell in cells}


def test_a_cell_that_fails_is_recorded_with_the_reason(study: Study, tmp_path: Path) -> None:
    cells = crossed(("full", "snapkv"), ("60",), KVChoice(select=SnapKV(window=64)))
    evaluate(replace(study, tasks=("vt",), cells=cells, count=1, places=("inside",)), OPTIONS, tmp_path)
    (failed,) = [one for one in records(tmp_path) if one.score is None]
    assert "64 in its window" in (failed.error or "")


def test_policies_that_need_slots_of_two_kinds_are_refused(study: Study, tmp_path: Path) -> None:
    cells = crossed(("arkvale", "scissorhands"), ("4x",), KVChoice())
    with refusal("policies", "arkvale and scissorhands"):
        evaluate(replace(study, cells=cells), OPTIONS, tmp_path)
    assert not list(tmp_path.iterdir())


def test_prompts_that_are_longer_than_the_workspace_are_answered_as_the_python_api_does(
    study: Study, tmp_path: Path
) -> None:
    length, options = 1536, replace(OPTIONS, prefill_workspace=1024)
    cells = crossed(("snapstream",), ("8x",), KVChoice())
    evaluate(
        replace(study, tasks=("vt",), cells=cells, lengths=(length,), places=("inside",), count=1), options, tmp_path
    )
    prompts = PromptBuilder(Path(study.model), length, 4096)
    sample = next(iter(TASKS["vt"].samples(Source((length,), 1, 0, None, prompts.count_tokens))))
    tokens = list(prompts.make(sample, "inside").tokens)
    assert len(tokens) > 1024
    llm = LLM(study.model, kv_budget=192, prompt_tokens=2048, prefill_workspace=1024, dtype="float32", graphs="off")
    params = SamplingParams(max_tokens=sample.answer_tokens)
    result = llm.generate([tokens], params, kv=cells[0].of(len(tokens), 60))[0]
    (ours,) = records(tmp_path)
    assert (ours.error, ours.text) == (None, llm.tokenizer.decode(result.token_ids))


def test_a_policy_that_keeps_every_token_is_refused_with_a_workspace_that_prompts_exceed(
    study: Study, tmp_path: Path
) -> None:
    options = replace(OPTIONS, prefill_workspace=LENGTH - 1)
    with refusal("policies", "full.* 639 tokens"):
        evaluate(study, options, tmp_path)
    assert not list(tmp_path.iterdir())
    assert evaluate(study, replace(options, prefill_workspace=2048), tmp_path, seconds=0)


def test_perplexity_through_decode_steps_equals_that_of_the_prompt_if_nothing_is_evicted(
    study: Study, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    (data / "text").mkdir(parents=True)
    words = Random(0).choices(["ring", "slot", "sink", "page", "entry"], k=2000)
    (data / "text" / "wikitext-2_test.txt").write_text(" ".join(words))
    cells = crossed(("full", "streaming"), ("64",), KVChoice())
    smaller = replace(study, tasks=("wikitext",), lengths=(2048,), cells=cells, count=1, data=data)
    evaluate(smaller, OPTIONS, tmp_path)
    full, streaming = records(tmp_path)
    engine = build(tiny.config(Path(study.model), prompt_tokens=4096, chunk=64))
    source = Source((2048,), 1, 0, data, PromptBuilder(Path(study.model), 2048, 4096).count_tokens)
    (sample,) = TASKS["wikitext"].samples(source)
    before, after = list(sample.context.encode()), list(sample.question.encode())
    logits = torch.cat([one.clone() for one in engine.prompt_logits(before + after)])[len(before) - 1 : -1]
    wanted = -cross_entropy(logits, torch.tensor(after), reduction="none")
    assert torch.allclose(torch.tensor(full.logprobs), wanted, atol=1e-4)
    assert full.score == pytest.approx(wanted.mean().item(), abs=1e-5)
    assert not torch.allclose(torch.tensor(streaming.logprobs), wanted, atol=1e-2)


def test_a_cache_that_is_full_before_all_tokens_were_fed_has_no_score(study: Study, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "wikitext-2_test.txt").write_text("ring slot sink " * 1000)
    cells = crossed(("snapkv",), ("200",), KVChoice(select=SnapKV(window=8)))
    evaluate(
        replace(study, tasks=("wikitext",), lengths=(1024,), cells=cells, count=1, data=tmp_path), OPTIONS, tmp_path
    )
    (failed,) = records(tmp_path)
    assert failed.score is None
    assert "was full" in (failed.error or "")


def test_the_costs_of_one_prompt_are_measured_once_for_each_cell(study: Study, done: Path) -> None:
    found = {one.cell: one for one in costs.read(done / journal.NAME)}
    assert set(found) == {cell.label for cell in CELLS}
    assert found["full"].held == found["full"].prompt == pytest.approx(4 * found["snapstream 4x window=8"].read, abs=3)
    assert (done / journal.NAME).read_text().count('"cost"') == len(CELLS)


def test_an_estimate_reports_the_time_and_writes_no_answer(study: Study, tmp_path: Path) -> None:
    (message,) = evaluate(study, OPTIONS, tmp_path, seconds=0)
    assert message.startswith("8 prompts of ")
    assert "56 answers" in message
    assert list(tmp_path.iterdir()) == []


def test_a_run_out_of_time_reports_what_is_left_and_the_next_run_does_that(study: Study, tmp_path: Path) -> None:
    smaller = replace(study, tasks=("vt",), count=1)
    (message,) = evaluate(smaller, OPTIONS, tmp_path, seconds=1e-9)
    assert "13 answers are left" in message
    (message,) = evaluate(smaller, OPTIONS, tmp_path, seconds=1e-9)
    assert "12 answers are left" in message
    assert evaluate(smaller, OPTIONS, tmp_path) == []
    assert len(records(tmp_path)) == 14


def test_a_group_leaves_out_a_task_without_data_and_a_named_task_fails(study: Study, tmp_path: Path) -> None:
    smaller = replace(study, tasks=("text", "vt"), count=1, places=("inside",))
    (left_out,) = evaluate(smaller, OPTIONS, tmp_path)
    assert left_out.startswith("wikitext ")
    assert "text/wikitext-2_test.txt" in left_out
    with pytest.raises(InvalidRequest, match="--data"):
        evaluate(replace(smaller, tasks=("wikitext",)), OPTIONS, tmp_path)


def test_a_task_without_a_prompt_that_fits_is_refused(study: Study, tmp_path: Path) -> None:
    (tmp_path / "longbench_v2" / "prompts").mkdir(parents=True)
    (tmp_path / "longbench_v2" / "prompts" / "0shot.txt").write_text("$DOC$\n$Q$ $C_A$ $C_B$ $C_C$ $C_D$")
    line = {"_id": "1", "context": "ring " * 500, "question": "?", "answer": "A", "difficulty": "easy", "domain": "x"}
    line |= {f"choice_{letter}": letter for letter in "ABCD"}
    (tmp_path / "longbench_v2" / "short_le30k.jsonl").write_text(json.dumps(line))
    smaller = replace(study, tasks=("longbench_v2",), data=tmp_path)
    with refusal("lengths", "640 tokens"):
        evaluate(smaller, OPTIONS, tmp_path / "answers")
    assert evaluate(replace(smaller, lengths=(3000,)), OPTIONS, tmp_path / "answers", seconds=0) != []


def test_a_group_that_is_all_left_out_is_refused_with_the_reasons(study: Study, tmp_path: Path) -> None:
    with refusal("tasks", "wikitext"):
        evaluate(replace(study, tasks=("text",)), OPTIONS, tmp_path)


def test_answers_under_other_defaults_are_not_mixed(study: Study, done: Path, tmp_path: Path) -> None:
    whole = (done / journal.NAME).read_text()
    (tmp_path / journal.NAME).write_text(whole.replace("kernel=31", "kernel=5", 1))
    with pytest.raises(InvalidRequest, match=r"kernel=5 .* kernel=31"):
        evaluate(study, OPTIONS, tmp_path)


def test_answers_of_another_dtype_are_not_mixed(study: Study, done: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"float32 .* bf16"):
        evaluate(study, replace(OPTIONS, dtype="bfloat16"), done)


def test_answers_with_other_pages_are_not_mixed(study: Study, tmp_path: Path) -> None:
    pages = replace(study, cells=[Cell(KVChoice("arkvale"), "4x")], tasks=("vt",), count=1, places=("inside",))
    evaluate(pages, OPTIONS, tmp_path)
    with pytest.raises(InvalidRequest, match=r"kv_page None .* 16"):
        evaluate(pages, replace(OPTIONS, kv_page=16), tmp_path)
    assert evaluate(pages, replace(OPTIONS, kv_page=32), tmp_path) == []


def test_answers_with_another_profile_of_heads_are_not_mixed(study: Study, tmp_path: Path) -> None:
    heads, path = heads_of(load_config(Path(study.model))), tmp_path / "heads.json"
    choice = KVChoice("snapkv", heads="profile")
    divided = replace(study, cells=[Cell(choice, "4x")], tasks=("vt",), count=1, places=("inside",))

    def run(profile: Path, share: float) -> list[str]:
        by_layer = tuple((share, *(1.0,) * (count - 1)) for count in heads)
        HeadProfile("text", 1, (by_layer,)).write(profile)
        return evaluate(divided, replace(OPTIONS, kv_profile=str(profile)), tmp_path)

    assert run(path, 0.5) == run(tmp_path / "moved.json", 0.5) == []
    with pytest.raises(InvalidRequest, match="kv_profile"):
        run(path, 0.25)
    path.unlink()
    with refusal("kv_profile", str(path)):
        evaluate(divided, replace(OPTIONS, kv_profile=str(path)), tmp_path)


def test_an_answer_says_how_many_entries_its_slot_may_hold(done: Path) -> None:
    by_label = {cell.label: cell for cell in CELLS}
    for one in records(done):
        cell = by_label[one.cell]
        if cell.budget is not None:
            assert one.entries == pytest.approx(cell.entries(one.prompt_tokens, 0), abs=1)
        else:
            assert one.entries >= one.prompt_tokens + one.output_tokens


def test_a_report_has_every_verdict_task_and_cost(done: Path) -> None:
    report = write(done, sections(done)).read_text()
    assert report.count("The full cache scores ") == 2  # by place of the question
    for text in ("## Means over tasks", "## Every task", "## Costs of a prompt of ", "## Next"):
        assert text in report
    assert "| niah_single_1, question after compression, 640 | full | 2 |" in report
