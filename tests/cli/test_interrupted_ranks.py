"""Ctrl-C while ranks connect, load or serve: the terminal sends it to all processes, and none is left."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ringkv.wire.handshake import KEY
from tests.cli.conftest import SMALL


def free_ports() -> str:
    """Return a port that is free, and the next one too."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1] - 1)


@pytest.mark.slow  # processes
@pytest.mark.parametrize(
    ("options", "sentence", "status"),
    [
        (("--nnodes", "2"), "waiting for 1 ranks at", 130),
        (("--nnodes", "2", "--node-rank", "1"), "following the machine at", 130),
        ((), "waiting for the other ranks", 130),
        ((), "is served at", 0),
    ],
)
def test_ctrl_c_ends_all_ranks_without_a_traceback(
    model_dir: Path, options: tuple[str, ...], sentence: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "a secret of 24 characters")
    command = [sys.executable, "-m", "ringkv", "serve", "--port", "0", "--model", str(model_dir), *SMALL]
    command += ["--tensor-parallel", "2", "--master-port", free_ports(), *options]
    program = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        assert program.stdout is not None
        assert any(sentence in line for line in program.stdout)
        others = psutil.Process(program.pid).children(recursive=True)
        os.killpg(program.pid, signal.SIGINT)
        rest = program.stdout.read()  # until the last process has ended
        assert program.wait(20) == status
        assert not psutil.wait_procs(others, 10)[1]
        assert "Traceback" not in rest
    finally:
        program.kill()
        program.wait()
