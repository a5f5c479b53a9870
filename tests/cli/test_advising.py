"""What --advise prints of a folder's answers."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ringkv.base.kv import KVChoice
from ringkv.cli.advising import find_served, print_advice
from ringkv.evaluation.cells import crossed
from ringkv.evaluation.costs import Cost, engine_of
from ringkv.evaluation.evaluate import Study
from ringkv.evaluation.journal import Journal, Record
from ringkv.plan.options import Options

CELLS = crossed(("full", "snapstream"), ("4x",), KVChoice())
OPTIONS = Options(dtype="float32", graphs="off")


def write_answers(folder: Path, task: str, place: str, prompt_tokens: int, lost: float) -> None:
    journal, engine = Journal(folder, {}), engine_of(OPTIONS)
    if not journal.records:
        journal.begin({})
    for cell in CELLS:
        cost = Cost(cell.label, prompt_tokens, 8, 12.34, prompt_tokens / 1000, 10, 5)
        for own, step in ((engine, cost.step), ("cuda:0", 0.001)):
            journal.note({"cost": asdict(replace(cost, engine=own, step=step))})
    facts = {"length": prompt_tokens}
    for sample in range(6):
        for cell, score in zip(CELLS, (1.0, 1.0 - lost), strict=True):
            held = {"prompt_tokens": prompt_tokens, "kept": 50}
            journal.add(Record(task, place, f"{prompt_tokens}/{sample}", cell.label, score, facts=facts, **held))


def test_answers_of_other_studies_in_the_folder_do_not_count(
    model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_answers(tmp_path, "vt", "inside", 90, lost=0.0)
    write_answers(tmp_path, "fwe", "inside", 400, lost=1.0)
    write_answers(tmp_path, "vt", "next", 400, lost=1.0)
    write_answers(tmp_path, "vt", "inside", 300, lost=1.0)
    study = Study(str(model_dir), ("vt",), CELLS, lengths=(90,), places=("inside",))
    print_advice(find_served(str(model_dir), OPTIONS), study, tmp_path, most_lost=5, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [(one["prompts"], one["score"]) for one in found["offers"]] == [(6, 100.0), (6, 100.0)]
    assert "--max-prompt 256" in found["command"]
    assert [one["cost"]["step"] for one in found["offers"]] == [0.09] * 2
    print_advice(find_served(str(model_dir), OPTIONS), study, tmp_path, most_lost=5)
    printed, report = capsys.readouterr().out, (tmp_path / "report.html").read_text()
    assert printed.count("12.3 s") == 2
    assert all(found["command"] in text and "prompts of up to 256 tokens" in text for text in (printed, report))
