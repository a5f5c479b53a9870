"""What `ringkv eval` prints, to a file and to a terminal."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from ringkv.base.kv import KVChoice
from ringkv.cli.output import OUTCOMES
from ringkv.cli.study import advise_study, find_served, print_report
from ringkv.evaluation.cells import crossed
from ringkv.evaluation.costs import Cost, engine_of
from ringkv.evaluation.evaluate import Study
from ringkv.evaluation.journal import Journal, Record
from ringkv.plan.options import Options

CELLS = crossed(("full", "snapstream"), ("4x",), KVChoice())
OPTIONS = Options(dtype="float32", graphs="off")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    answers = Journal(tmp_path, {"model": "toy", "weights": "bf16", "seed": 0})
    answers.begin({"machine": "a machine", "version": "1"})
    for place in range(3):
        for cell, score in (("full", 1.0), ("snapstream 4x", float(place == 0))):
            answers.add(Record("answers", "inside", f"{place}", cell, score, prompt_tokens=100, kept=25))
    for one in (Cost("paged", 100, 8, 2.0, 0.05, 100, 25, 3.5), Cost("full", 999, 8, 9.0, 0.08, 999, 999)):
        answers.note({"cost": asdict(one)})
    return tmp_path


def test_the_verdict_is_first_and_a_loss_of_few_prompts_is_named_as_such(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(folder)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("At 4x, snapstream has too few prompts to tell (3; about ")
    assert lines[1] == "The full cache scores 100.0% over 3 prompts."
    assert lines[2].startswith("  snapstream 4x: has too few prompts to tell (3; about ")
    assert "-66.7, too few prompts" in "\n".join(lines)
    for tokens in (100, 999):
        assert f"costs of a prompt of {tokens} tokens; steps of 8 requests" in "\n".join(lines)
    assert "paged 100 25 3.5 2.00 s 50.0 ms" in [" ".join(line.replace("│", " ").split()) for line in lines]
    assert lines[-1] == str(folder / "report.md")
    assert "\x1b" not in "".join(lines)


def test_a_terminal_shows_it_in_bold_and_in_the_reports_colour(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in (("FORCE_COLOR", "1"), ("COLORTERM", "truecolor"), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value)
    print_report(folder)
    colour = ";".join(str(part) for part in bytes.fromhex(OUTCOMES["few"][1:]))
    assert f"\x1b[1;38;2;{colour}m-66.7, too few prompts" in capsys.readouterr().out


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
    found = advise_study(find_served(str(model_dir), OPTIONS), study, tmp_path, most_lost=5)
    assert [(one.prompts, one.score) for one in found.offers] == [(6, 100.0), (6, 100.0)]
    assert "--max-prompt 256" in found.command
    assert [one.cost and one.cost.step for one in found.offers] == [0.09] * 2
    print_report(tmp_path, found)
    printed, report = capsys.readouterr().out, (tmp_path / "report.md").read_text()
    assert printed.count("12.3 s") == report.count("12.3 s") == 2
    assert all(found.command in text and "prompts of up to 256 tokens" in text for text in (printed, report))
