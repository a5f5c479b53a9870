import re
import signal
import subprocess
import sys

import pytest

from ringkv.base.version import VERSION
from ringkv.cli.application import PANELS, name_of
from ringkv.residency.catalogue import catalogue
from tests.cli.conftest import Cli

COMMANDS = [name_of(command) for commands in PANELS.values() for command in commands]
HEAVY = {"torch", "transformers", "fastapi", "uvicorn", "tokenizers", "jinja2", "huggingface_hub", "numpy"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_commands_help_gives_an_example_of_it(command: str, cli: Cli) -> None:
    result = cli(command, "--help")
    usage, example = f"Usage: ringkv {command}", f"ringkv {command}"
    assert result.status == 0
    assert usage in result.out
    assert example in result.out.replace(usage, "")


@pytest.mark.parametrize("command", ["generate", "chat", "serve", "bench", "eval"])
def test_help_begins_with_the_common_options_and_ends_with_all_others(command: str, cli: Cli) -> None:
    common, _, less_common = cli(command, "--help").out.partition("Less common")
    assert "--model" in common
    assert "--slots" in common
    assert re.findall(r"--kv-\w+", common.rpartition("─ Model ─")[2]) in (
        [],
        ["--kv-policy", "--kv-budget", "--kv-compression"],
    )
    assert {"--kv-window", "--kv-select", "--threads", "--graphs"} <= set(re.findall(r"--[a-z-]+", less_common))


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_that_take_no_value_are_shown_without_one(command: str, cli: Cli) -> None:
    typed = [line for line in cli(command, "--help").out.splitlines() if "<bool>" in line]
    assert all("--help" in line for line in typed)


def test_without_arguments_the_commands_are_listed(cli: Cli) -> None:
    result = cli()
    assert result.status == 0
    assert all(command in result.out for command in COMMANDS)


def test_the_version_is_the_packages(cli: Cli) -> None:
    assert cli("--version") == (0, f"ringkv {VERSION}\n", "")


def test_python_runs_it_as_a_module_too() -> None:
    done = subprocess.run([sys.executable, "-m", "ringkv", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"ringkv {VERSION}\n")


def test_help_loads_nothing_heavy() -> None:
    code = "import sys; from ringkv.cli.application import run; run(['generate', '--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()} & HEAVY == set()


def program(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `ringkv` in its own process, after some code."""
    code = f"import sys\n{code}\nfrom ringkv.cli.main import main\nmain()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def test_ctrl_c_while_the_application_is_imported_is_one_line() -> None:
    done = program(
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'ringkv.cli.application': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())"
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "ringkv: interrupted\n")


@pytest.mark.slow  # loads torch in a process
@pytest.mark.parametrize(("command", "status"), [("--version", 0), ("--nope", 2)])
def test_a_program_that_loaded_torch_flushes_its_output_and_runs_exit_functions(command: str, status: int) -> None:
    plain = program("", command)
    after_torch = program("import atexit, os, torch; atexit.register(os.write, 1, b'bye')", command)
    assert after_torch.returncode == plain.returncode == status
    assert (after_torch.stdout, after_torch.stderr) == (plain.stdout + "bye", plain.stderr)


@pytest.mark.slow  # loads torch in a process
def test_ctrl_c_in_an_exit_function_prints_nothing() -> None:
    done = program("import atexit, signal, torch; atexit.register(signal.raise_signal, signal.SIGINT)", "--version")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "no such command 'nope'; see ringkv --help"),
        (["generae"], "no such command 'generae'. Did you mean 'generate'? See ringkv --help"),
        (["chat", "--kv-bugdet", "5"], "no such option: --kv-bugdet. Did you mean --kv-budget? See ringkv chat --help"),
        (
            ["serve", "--max-promt", "5"],
            "no such option: --max-promt. Did you mean --max-prompt? See ringkv serve --help",
        ),
        (["generate", "smollm2", "Hi"], "unexpected Hi; name a model with --model; see ringkv generate --help"),
        (["doctor", "smollm2"], "unexpected smollm2; see ringkv doctor --help"),
        (["plan", "qwen3-8b", "qwen3-4b"], "the command takes one model; leave out qwen3-4b; see ringkv plan --help"),
        (
            ["serve", "smollm2", "-m", "qwen3-8b"],
            "smollm2 is a second model beside --model; give all with --model; see ringkv serve --help",
        ),
        (["chat", "--json"], "no such option: --json; see ringkv chat --help"),
        (
            ["generate", "--kv-budget", "abc", "x"],
            "invalid value for '--kv-budget': give a whole number, such as 7000 or 32k",
        ),
        (["chat", "--temperature", "hot"], "invalid value for '--temperature': give a number; see"),
        (["pull"], f"missing argument 'NAME'; give one of {', '.join(catalogue())}, or a hub id"),
        (["generate", "--nope"], "no such option: --nope"),
        (["generate", "--kv-budget"], "option '--kv-budget' requires an argument"),
        (["generate", "--kv-budget", "many", "x"], "invalid value for '--kv-budget'"),
        (["pull"], "missing argument 'NAME'"),
    ],
)
def test_invalid_arguments_get_one_line(arguments: list[str], message: str, cli: Cli) -> None:
    result = cli(*arguments)
    assert result.status == 2
    assert result.out == ""
    (line,) = result.err.splitlines()
    assert line.startswith(f"ringkv: {message}")


def test_ctrl_c_ends_a_command_with_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ringkv.residency.inventory.list_models", interrupt)
    assert cli("models") == (130, "", "ringkv: interrupted\n")


def test_an_argument_is_the_model_as_the_option_is(cli: Cli) -> None:
    as_option = cli("plan", "--model", "qwen3-8b", "--memory", "40GB")
    assert as_option.status == 0
    assert cli("plan", "--memory", "40GB", "qwen3-8b").out == as_option.out


def test_an_argument_comes_before_the_environments_model(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGKV_SERVE_MODEL", "of-environment")
    assert "'of-environment'" in cli("serve").err
    assert "'of-argument'" in cli("serve", "of-argument").err


def test_only_commands_without_arguments_of_their_own_take_models(cli: Cli) -> None:
    usages = {command: cli(command, "--help").out.partition("[OPTIONS]")[2].split()[:1] for command in COMMANDS}
    one = {name for name, first in usages.items() if first == ["[MODEL]"]}
    assert one == {"bench", "chat", "demo", "eval", "plan"}
    assert usages["serve"] == ["[MODEL]..."]
