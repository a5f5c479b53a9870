import io
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ringkv.base.events import KVUsage, Usage
from ringkv.cli.commands.chat import BAR, filling
from tests.cli.conftest import SMALL, Cli, CliResult, start

Talk = Callable[..., CliResult]


@pytest.fixture
def talk(cli: Cli, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """`ringkv chat` with these lines typed, then the end of input."""

    def call(*lines: str, options: tuple[str, ...] = ()) -> CliResult:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return cli("chat", "--model", model_dir, *SMALL, "--max-tokens", "8", *options)

    return call


def prompts(result: CliResult) -> list[int]:
    """Prompt tokens of each turn."""
    return [
        int(line.split("] ")[1].split(" | ")[1].split()[0]) for line in result.err.splitlines() if line.startswith("[")
    ]


def test_each_turn_has_the_conversation_so_far(talk: Talk) -> None:
    result = talk("Hi", "And?")
    first, second = prompts(result)
    assert result.status == 0
    assert first == len("user:Hi") + 3
    assert second > first + len("user:And?")


def test_questions_from_a_pipe_are_echoed_before_their_answers(talk: Talk) -> None:
    out = talk("Hi", "", "And?").out.splitlines()
    assert [line for line in out if line.startswith("> ")] == ["> Hi", "> And?"]
    assert len(out) >= 2 * 3  # a blank line, the question and its answer


def test_an_answer_truncated_by_the_context_is_reported(talk: Talk) -> None:
    result = talk("x" * 490, options=("--max-tokens", "50", "--ignore-eos"))
    assert f"truncated at {512 - 490 - 8} of 50 tokens" in result.err


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    (tmp_path / "paper.txt").write_text("A paper on rings.")
    return tmp_path / "paper.txt"


def test_a_file_comes_before_the_first_question_and_stays_in_the_conversation(talk: Talk, paper: Path) -> None:
    plain = prompts(talk("Hi", "And?"))
    with_paper = prompts(talk("Hi", "And?", options=("--prompt-file", str(paper))))
    assert with_paper[0] - plain[0] == len("A paper on rings.\n\n")
    assert with_paper[1] > with_paper[0]
    assert with_paper[1] - with_paper[0] < len("A paper on rings.\n\n") + 8 * 4  # it is not sent again


def test_a_file_can_be_given_in_the_middle_and_is_there_again_after_a_reset(talk: Talk, paper: Path) -> None:
    _, alone = prompts(talk("Hi", "/reset", "And?"))
    result = talk("Hi", "/reset", f"/file {paper}", "And?")
    assert prompts(result)[1] == alone + len("A paper on rings.\n\n")
    assert str(paper) in result.err
    first, second = prompts(talk("Hi", "/reset", "Hi", options=("--prompt-file", str(paper))))
    assert first == second > len("A paper on rings.")


@pytest.mark.parametrize(
    ("line", "message"),
    [("/file nope.txt", "nope.txt cannot be read"), ("/file", "give a file name"), ("/file -", "give a file name")],
)
def test_a_file_that_cannot_be_read_is_reported_and_the_conversation_continues(
    talk: Talk, line: str, message: str
) -> None:
    result = talk(line, "Hi")
    assert message in result.err
    assert prompts(result) == prompts(talk("Hi"))


def test_a_missing_prompt_file_is_refused_before_the_model_is_loaded(talk: Talk) -> None:
    result = talk("Hi", options=("--prompt-file", "nope.txt"))
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("ringkv: nope.txt ")


def test_a_turn_ends_with_its_speed(talk: Talk) -> None:
    (line,) = [line for line in talk("Hi", options=("--ignore-eos",)).err.splitlines() if line.startswith("[")]
    assert re.search(r" \| \d+\.\d tok/s$", line)


def test_reset_starts_a_new_conversation(talk: Talk) -> None:
    first, second = prompts(talk("Hi", "/reset", "Hi"))
    assert first == second


def test_quit_ends_before_what_follows(talk: Talk) -> None:
    assert prompts(talk("/quit", "Hi")) == []


def test_ctrl_d_ends_the_line_that_it_was_typed_on(cli: Cli, model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(prompt: str) -> str:
        print(prompt, end="")
        raise EOFError

    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", end)
    assert cli("chat", "--model", model_dir, *SMALL).out == "\n> \n"


def test_help_names_the_commands(talk: Talk) -> None:
    assert talk("/help").err.count("/reset") == 2  # at the beginning, and now


def test_an_unknown_command_is_not_sent_to_the_model(talk: Talk) -> None:
    result = talk("/nope now")
    assert prompts(result) == []
    assert "/nope; /help" in result.err


def test_a_turn_that_is_too_long_is_refused_and_the_conversation_continues(talk: Talk) -> None:
    result = talk("Hi", "x" * 600, "Hi")
    first, second = prompts(result)
    assert "ringkv: the prompt has" in result.err
    assert second < first + 100
    assert result.status == 0


def test_a_remedy_is_a_flag(talk: Talk) -> None:
    result = talk("x" * 300, options=("--kv-policy", "full"))
    assert "--kv-budget holds 64" in result.err
    assert "--kv-policy snapstream" in result.err


def test_the_bar_is_as_full_as_the_cache() -> None:
    half = Usage(20, 13, KVUsage("snapstream", 64, kept=20, evicted=0, ring_wraps=0, bytes_held=1000))
    assert filling(half).plain.startswith("[" + "█" * (BAR // 2) + "░" * (BAR // 2) + "] 32 of 64 entries | ")


@pytest.mark.slow  # loads torch in a process
def test_ctrl_c_stops_the_answer_and_not_the_program(model_dir: Path) -> None:
    options = ("--max-tokens", "400", "--ignore-eos", "--temperature", "1")
    program = start("chat", "--model", model_dir, *SMALL, *options)
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("Hi\n")
    program.stdin.flush()
    question = [program.stdout.readline() for _ in range(2)]
    assert question == ["\n", "> Hi\n"]
    program.stdout.read(1)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate("/quit\n", timeout=60)
    assert program.returncode == 0
    assert "(stopped)" in out
    assert "Traceback" not in err


def test_a_base_model_is_refused_before_the_first_question(cli: Cli, model_dir: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes((model_dir / name).read_bytes())
    result = cli("chat", "--model", tmp_path, *SMALL)
    assert result.status == 2
    assert "chat template" in result.last_line
