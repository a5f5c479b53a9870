from dataclasses import replace
from itertools import product

import pytest

from bench import accuracy
from bench.studies import OURS, STUDIES, selection_settings, single_prefill_settings, wide_pooling_settings
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SELECTORS
from ringkv.evaluation.cells import Cell
from ringkv.evaluation.journal import Record
from ringkv.evaluation.tasks.catalogue import select_tasks

BESIDE_ANOTHER = {
    "workspace-qwen": "pages-longbench-qwen",
    "pages-16-longbench-qwen": "pages-longbench-qwen",
    "dropped-qwen": "estimate-qwen",
    "estimate-32-qwen": "estimate-qwen",
    "estimate-later-qwen": "later-qwen",
    "layer-later-qwen": "later-qwen",
    "estimate-longbench-qwen": "pages-longbench-qwen",
    "estimate-30k-qwen": "passkeys-30k-qwen",
    "estimate-16-30k-qwen": "passkeys-30k-qwen",
}
ALONE = {"workspace-passkey-qwen"}
"""Studies without the full cache, and those they are compared with: an engine has one workspace, one kind of pages.
Those `ALONE` are not compared."""


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_existing_tasks_and_the_full_cache_first(name):
    study = STUDIES[name]
    assert select_tasks(study.tasks)
    labels = [cell.label for cell in study.cells]
    assert (labels[0] == "full") != (name in BESIDE_ANOTHER or name in ALONE)
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(("name", "whole"), BESIDE_ANOTHER.items())
def test_a_study_without_the_full_cache_has_the_prompts_of_one_with_it(name, whole):
    study, other = STUDIES[name], STUDIES[whole]
    assert replace(study, cells=other.cells) == other
    assert set(study.cells) < set(other.cells)


def test_each_selection_setting_differs_from_kvpress_settings():
    full, kvpress, *others = selection_settings("4x")
    assert (full.label, kvpress.label) == ("full", "snapstream 4x window=64 kernel=5 pooling=avg")
    labels = {cell.label for cell in others}
    assert {"snapstream 4x window=16 kernel=5 pooling=avg", "snapstream 4x window=64 kernel=5"} <= labels
    assert {"snapstream 4x kernel=7", "snapstream 4x window=64"} <= labels
    selectors = {cell.choice.select.name for cell in selection_settings("4x")}
    assert selectors == set(SELECTORS)
    assert not any("kvzip" in cell.label for cell in single_prefill_settings("4x"))


def test_ours_is_the_default():
    assert OURS == KVChoice()
    assert Cell(KVChoice(), "8x") in wide_pooling_settings("8x")


def test_the_table_of_a_study_is_its_means_or_its_only_task():
    def answered(*names):
        sizes = {"prompt_tokens": 100, "output_tokens": 12, "facts": {"length": 4096}}
        return [
            Record(name, "inside", f"{place}", cell, score, kept=kept, ring_wraps=place % 2, **sizes)
            for (cell, score, kept), name, place in product(
                (("full", 1.0, 100), ("snapstream 4x", 0.0, 25)), names, range(5)
            )
        ]

    both, one = accuracy.means(answered("vt", "cwe")), accuracy.means(answered("vt"))
    assert (
        "| ruler, mean of 2 tasks, 4,096 | snapstream 4x | 10 | 0.0 | -100.0 [-100.0, -100.0] | 25% | 12 | 0.4 |"
        in both
    )
    assert "| vt" not in both
    assert "| vt, 4,096 | full | 5 | 100.0 |" in one


def test_without_a_name_it_lists_the_answers_of_each_study(capsys, monkeypatch):
    monkeypatch.setattr(accuracy, "records", lambda name: [])
    monkeypatch.setattr("sys.argv", ["accuracy"])
    accuracy.main()
    assert "ruler-qwen: 0 answers" in capsys.readouterr().out


def test_a_part_of_a_study_can_be_requested():
    study = STUDIES["ruler-qwen"]
    argv = ["ruler-qwen", "--tasks", "vt,cwe", "--places", "inside", "--count", "5"]
    part = accuracy._part(study, accuracy._arguments(argv))
    assert part == replace(study, tasks=("vt", "cwe"), places=("inside",), count=5)
    assert accuracy._part(study, accuracy._arguments(["ruler-qwen"])) == study
    assert accuracy._part(study, accuracy._arguments(["ruler-qwen", "--count", "99"])) == study


def test_the_answers_of_an_interrupted_run_are_packed(monkeypatch, tmp_path):
    packed = []

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(accuracy, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(accuracy, "unpack", lambda name, to: to)
    monkeypatch.setattr(accuracy, "pack", lambda name, at: packed.append((name, at)))
    monkeypatch.setattr(accuracy, "evaluate", interrupted)
    monkeypatch.setattr("sys.argv", ["accuracy", "ruler-qwen"])
    with pytest.raises(KeyboardInterrupt):
        accuracy.main()
    assert packed == [("ruler-qwen", tmp_path / "accuracy" / "ruler-qwen")]
