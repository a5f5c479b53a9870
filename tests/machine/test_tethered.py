import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import slow_compiler
from slow_compiler import running, within

from ringkv.machine.tethered import script, tethered

PARENT = """
import subprocess, sys
from pathlib import Path
from ringkv.machine.tethered import script, tethered

compiler, how = sys.argv[1:]
command = tethered([compiler, "-c"]) if how == "tethered" else [script(compiler, Path(compiler).parent), "-c"]
subprocess.run(command)
"""


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    return slow_compiler.save(tmp_path)


@pytest.fixture(params=["tethered", "script"])
def parent(request: pytest.FixtureRequest, compiler: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A process that runs the compiler."""
    command = [sys.executable, "-c", PARENT, str(compiler), request.param]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_compiler_and_its_children_end_with_their_parent(
    parent: "subprocess.Popen[bytes]", compiler: Path, number: signal.Signals
) -> None:
    assert within(10, lambda: len(running(compiler)) == 2)
    parent.send_signal(number)
    assert within(60, lambda: not running(compiler))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_compiler_and_its_children(compiler: Path, number: signal.Signals) -> None:
    with subprocess.Popen(tethered([str(compiler)])) as process:
        assert within(10, lambda: len(running(compiler)) == 2)
        process.send_signal(number)
        assert process.wait(60) == 128 + number
    assert within(60, lambda: not running(compiler))


def test_without_its_parent_nothing_is_started(compiler: Path) -> None:
    *python, _, program = tethered([str(compiler)])
    assert subprocess.run([*python, "1", program], check=False).returncode == 1
    assert not compiler.with_name("pids").exists()


@pytest.mark.parametrize(("line", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)])
def test_the_exit_status_is_the_programs(line: str, status: int) -> None:
    assert subprocess.run(tethered(["sh", "-c", line]), check=False).returncode == status


def test_a_script_passes_arguments_and_output_on(tmp_path: Path) -> None:
    echo = script("/bin/echo", tmp_path / "a folder")
    assert echo.name == "echo"
    assert echo == script("/bin/echo", tmp_path / "a folder")
    got = subprocess.run([echo, "-DX=a b", "$HOME"], capture_output=True, text=True, check=True)
    assert got.stdout == "-DX=a b $HOME\n"
