"""A tiny chat model on disk, and command lines run in this process."""

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ringkv.cli.application import run
from tests import chat_model

SMALL = ("--graphs", "off", "--dtype", "float32", "--threads", "1", "--kv-budget", "64")


class CliResult(NamedTuple):
    """Exit status, stdout and stderr of a command line."""

    status: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The last line on stderr."""
        return self.err.splitlines()[-1]


Cli = Callable[..., CliResult]


def start(*arguments: object) -> subprocess.Popen[str]:
    """Start a command line in its own process, which can be sent signals; its streams are pipes."""
    command = [sys.executable, "-c", "from ringkv.cli.main import main; main()", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace")


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model.save(tmp_path_factory.mktemp("tiny-chat"))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """Run one command line; arguments are converted to text."""
    monkeypatch.delenv("RINGKV_DEBUG", raising=False)

    def call(*arguments: object) -> CliResult:
        capsys.readouterr()
        return CliResult(run([str(one) for one in arguments]), *capsys.readouterr())

    yield call
    logging.getLogger("ringkv").handlers.clear()
