"""What --advise prints of a folder's answers."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from ringkv.base.kv import KVChoice
from ringkv.cli.advising import find_served, print_advice
from ringkv.evaluation.cells import crossed
from ringkv.evaluation.costs import Cost
from ringkv.evaluation.evaluate import Study
from ringkv.evaluation.journal import Journal, Record
from ringkv.plan.options import Options

CELLS = crossed(("full", "snapstream"), ("4x",), KVChoice())
OPTIONS = Options(dtype="float32", graphs="off")


def write_answers(folder: Path, task: str, place: str, prompt_tokens: int, lost: float) -> None:
    journal = Journal(folder, {})
    if not journal.records:
        journal.begin({})
    for cell in CELLS:
        journal.note({"cost": asdict(Cost(cell.label, prompt_tokens, 8, 12.34, prompt_tokens / 1000, 10, 5))})
    for sample in range(6):
        for cell, score in zip(CELLS, (1.0, 1.0 - lost), strict=True):
            journal.add(Record(task, place, str(sample), cell.label, score, prompt_tokens=prompt_tokens))


def test_answers_of_other_studies_in_the_folder_do_not_count(
    model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_answers(tmp_path, "vt", "inside", 90, lost=0.0)
    write_answers(tmp_path, "fwe", "inside", 400, lost=1.0)
    write_answers(tmp_path, "vt", "next", 400, lost=1.0)
    study = Study(str(model_dir), ("vt",), CELLS, places=("inside",))
    print_advice(find_served(str(model_dir), OPTIONS), study, tmp_path, most_lost=5, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [(one["prompts"], one["score"]) for one in found["offers"]] == [(6, 100.0), (6, 100.0)]
    assert "--max-prompt 256" in found["command"]
    assert [one["cost"]["step"] for one in found["offers"]] == [0.09] * 2
    print_advice(find_served(str(model_dir), OPTIONS), study, tmp_path, most_lost=5)
    assert capsys.readouterr().out.count("12.3 s") == 2
