import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest

from ringkv.cli.commands.eval import EvalOptions
from ringkv.evaluation.tasks.catalogue import GROUPS
from tests import chat_model
from tests.cli.conftest import Cli, CliResult

SMALL = ("--graphs", "off", "--dtype", "float32", "--threads", "2", "--slots", "3", "--kv-window", "8")
STUDY = (
    "--tasks",
    "niah_single_1",
    "--lengths",
    "700",
    "--count",
    "2",
    "--budgets",
    "2x",
    "--question",
    "inside,after",
)


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model.save(tmp_path_factory.mktemp("model"), max_position_embeddings=2048)


def ask(cli: Cli, model: Path, to: Path, *more: object) -> CliResult:
    return cli("eval", "--model", model, *SMALL, *STUDY, "--to", to, *more)


def test_a_table_and_a_report_come_of_it_and_a_second_run_only_shows_them(
    long_model: Path, tmp_path: Path, cli: Cli
) -> None:
    first = ask(cli, long_model, tmp_path)
    assert first.status == 0
    assert "niah_single_1, question after compression, 700" in first.out
    assert "snapstream 2x window=8" in first.out
    assert first.out.splitlines()[-1] == str(tmp_path / "report.md")
    assert first.err.startswith(f"answers and report go to {tmp_path}; --to DIR changes that\n")
    again = ask(cli, long_model, tmp_path)
    assert again.out == first.out
    assert "answering" not in again.err
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert len([one for one in answers if "task" in one]) == 2 * 2 * 4


def test_without_a_folder_the_report_is_in_the_current_one_and_its_whole_path_is_printed(
    long_model: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    to = tmp_path / f"eval-{long_model.name}"
    result = cli("eval", "--model", long_model, *SMALL, *STUDY, "--policies", "full")
    assert f"answers and report go to {to}; --to DIR" in result.err
    assert result.out.splitlines()[-1] == str(to / "report.md")


def own_prompts(tmp_path: Path, count: int = 6) -> Path:
    path = tmp_path / "mine.jsonl"
    lines = (
        {"prompt": f"{n} " + "a text about rings " * 20, "question": "\nWhat?", "max_tokens": 6} for n in range(count)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_users_own_prompts_are_compared_with_the_full_caches_answers(
    long_model: Path, tmp_path: Path, cli: Cli
) -> None:
    own, to = own_prompts(tmp_path), tmp_path / "to"
    budgets = ("--policies", "full,snapstream", "--budgets", "8x")
    first = cli("eval", "--model", long_model, *SMALL, "--prompts", own, "--to", to, *budgets)
    rows = [line.split() for line in first.out.splitlines() if line.startswith("agreement")]
    assert [row[1:4] for row in rows] == [["full", "6", "100.0"], ["snapstream", "8x", "window=8"]]
    assert "left out" not in first.err  # the task of prompts with answers, which there are none of
    again = cli("eval", "--model", long_model, *SMALL, "--prompts", own, "--to", to, "--policies", "snapstream")
    assert again.status == 2
    assert "add full" in again.last_line
    both = cli("eval", "--model", long_model, "--prompts", own, "--tasks", "ruler")
    assert (both.status, "--prompts" in both.last_line) == (2, True)


def test_advice_is_a_command_and_its_costs_on_a_users_own_prompts(long_model: Path, tmp_path: Path, cli: Cli) -> None:
    arguments = ("eval", "--model", long_model, *SMALL, "--prompts", own_prompts(tmp_path), "--to", tmp_path / "to")
    shown = cli(*arguments, "--advise", "--budgets", "2x")
    assert shown.status == 0
    *_, command, _, report = shown.out.splitlines()
    assert command.startswith(f"ringkv serve --model {long_model} --kv-policy ")
    assert command in Path(report).read_text()
    found = json.loads(cli(*arguments, "--advise", "--budgets", "2x", "--json", "--max-loss", "100").out)
    assert [one["cell"].split()[0] for one in found["offers"]] == ["full", "snapstream", "arkvale"]
    assert {one["prompts"] for one in found["offers"]} == {6}
    assert found["chosen"]["cell"] == "snapstream 2x window=8"
    assert "at most 100 points" in found["why"]


def test_advice_for_questions_in_the_next_turn_is_also_about_kvzip_with_heads_that_divide_a_slot(
    long_model: Path, tmp_path: Path, cli: Cli
) -> None:
    arguments = ("eval", "--model", long_model, *SMALL[:-2], "--prompts", own_prompts(tmp_path), "--to", tmp_path)
    arguments = (*arguments, "--advise", "--budgets", "2x", "--question", "next", "--json", "--max-loss", "100")
    found = json.loads(cli(*arguments).out)
    offers = {one["cell"]: one for one in found["offers"]}
    divided = "snapstream 2x select=kvzip heads=global"
    assert [*offers] == ["full", "snapstream 2x", "arkvale 2x", divided]
    assert {one["prompts"] for one in found["offers"]} == {6}
    flags = " ".join(offers[divided]["flags"])
    for setting in ("--kv-policy snapstream", "--kv-select kvzip", "--kv-heads global", "--kv-turns continue"):
        assert setting in flags
    assert "--kv-heads" not in offers["snapstream 2x"]["flags"]
    assert 0 < offers[divided]["slot_bytes"] - offers["snapstream 2x"]["slot_bytes"] < 1000
    named = cli(*arguments, "--kv-select", "keydiff", "--to", tmp_path / "named")
    assert not [one for one in json.loads(named.out)["offers"] if "kvzip" in one["cell"]]


def test_all_that_is_advised_has_answered_the_same_questions(long_model: Path, tmp_path: Path, cli: Cli) -> None:
    """In the prompt and in the next turn; else what each loses could not be compared."""
    arguments = ("eval", "--model", long_model, *SMALL[:-2], "--prompts", own_prompts(tmp_path, 2), "--to", tmp_path)
    found = json.loads(cli(*arguments, "--advise", "--budgets", "2x", "--question", "inside,next", "--json").out)
    assert "select=kvzip" in found["offers"][-1]["cell"]
    assert {one["prompts"] for one in found["offers"]} == {4}


@pytest.mark.parametrize("only", [["--estimate"], ["--minutes", "0"]])
def test_an_estimate_answers_nothing(only: list[str], long_model: Path, tmp_path: Path, cli: Cli) -> None:
    result = ask(cli, long_model, tmp_path, *only)
    assert result.status == 0
    assert "4 prompts of " in result.err
    assert not (tmp_path / "report.md").exists()


def test_an_estimate_needs_no_package_for_scores(
    long_model: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("rapidfuzz", "rouge_score"):
        monkeypatch.setitem(sys.modules, module, None)  # its import fails
    monkeypatch.setattr("ringkv.evaluation.needed.find_spec", lambda name: name == "wonderwords" or None)
    assert ask(cli, long_model, tmp_path).last_line.endswith("pip install 'ringkv[eval]'")
    result = ask(cli, long_model, tmp_path, "--estimate")
    assert (result.status, "4 prompts of " in result.err) == (0, True)


@pytest.mark.parametrize("has_answers", [True, False])
def test_an_interrupted_run_names_the_folder_of_its_answers_if_there_are_any(
    has_answers: bool, long_model: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> Iterator[str]:
        raise KeyboardInterrupt
        yield ""

    monkeypatch.setattr("ringkv.evaluation.evaluate.evaluate", interrupted)
    to = tmp_path / "answers"
    if has_answers:
        to.mkdir()
    result = ask(cli, long_model, to)
    assert result.status == 130
    assert (f"the answers so far are in {to}" in result.err) is has_answers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "rulr"], "there is no task 'rulr'; there are the groups ruler, longbench"),
        (["--policies", "snap"], "policies is 'snap'; it must be one of full, streaming"),
        (["--budgets", "half"], "budget 'half' is neither a share of the prompt, such as 4x"),
        (["--question", "before"], "question is 'before'; it must be one of inside, after"),
        (["--lengths", "4k"], "lengths is 4,096; it must be at most 2,048, the model's context"),
        (["--lengths", "12"], "lengths is 12; it must be at least 256"),
        (["--count", "0"], "count is 0; it must be at least 1"),
        (["--json"], "--json prints what --advise found; add --advise"),
        (
            ["--advise"],
            "--advise is for questions that a server takes, and question is after; choose --question inside",
        ),
        (
            ["--advise", "--question", "inside", "--policies", "snapstream"],
            "--advise compares with the full cache; add full",
        ),
        (["--tasks", "qasper"], "it reads longbench/qasper.jsonl; give the folder that has it with --data"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    arguments: list[str], message: str, long_model: Path, tmp_path: Path, cli: Cli
) -> None:
    result = ask(cli, long_model, tmp_path, *arguments)
    assert (result.status, result.out) == (2, "")
    assert result.last_line.startswith(f"ringkv: {message}")


def test_the_help_names_every_group_of_tasks() -> None:
    (option,) = get_type_hints(EvalOptions, include_extras=True)["tasks"].__metadata__
    assert [group for group in GROUPS if group not in option.help] == ["own"]  # that of --prompts


def test_another_models_answers_are_left_alone(long_model: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "answers.jsonl").write_text('{"about": {"model": "other", "weights": "bf16", "seed": 0}}\n')
    result = ask(cli, long_model, tmp_path)
    assert result.status == 2
    assert "model other" in result.last_line


def test_a_workspace_is_refused_beside_the_full_cache_with_the_flags_to_change(cli: Cli, model_dir: Path) -> None:
    result = cli("eval", "--model", model_dir, "--prefill-workspace", 300, "--lengths", 400, "--estimate")
    assert result.status == 2
    assert result.err.startswith("ringkv: policies has full")
    assert "--prefill-workspace" in result.err
