"""What `ringkv eval` prints, to a file and to a terminal."""

from dataclasses import asdict
from pathlib import Path

import pytest

from ringkv.base.palette import OUTCOMES
from ringkv.cli.study_tables import print_study
from ringkv.evaluation.costs import Cost
from ringkv.evaluation.journal import Journal, Record


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
    print_study(folder)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("At 4x, snapstream has too few prompts to tell (3; about ")
    assert lines[1] == "The full cache scores 100.0% over 3 prompts."
    assert lines[2].startswith("  snapstream 4x: has too few prompts to tell (3; about ")
    assert "-66.7, too few prompts" in "\n".join(lines)
    for tokens in (100, 999):
        assert f"costs of a prompt of {tokens} tokens; steps of 8 requests" in "\n".join(lines)
    assert "paged 100 25 3.5 2.00 s 50.0 ms" in [" ".join(line.replace("│", " ").split()) for line in lines]
    assert lines[-1] == str(folder / "report.html")
    assert "\x1b" not in "".join(lines)


def test_a_terminal_shows_it_in_bold_and_in_the_reports_colour(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in (("FORCE_COLOR", "1"), ("COLORTERM", "truecolor"), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value)
    print_study(folder)
    colour = ";".join(str(part) for part in bytes.fromhex(OUTCOMES["few"].either[1:]))
    assert f"\x1b[1;38;2;{colour}m-66.7, too few prompts" in capsys.readouterr().out
