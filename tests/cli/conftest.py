"""A tiny chat model on disk, and the command line run in this process."""

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


class Said(NamedTuple):
    """What a command line came to."""

    status: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The last line on stderr."""
        return self.err.splitlines()[-1]


Cli = Callable[..., Said]


def start(*arguments: object) -> subprocess.Popen[str]:
    """The command line in a process of its own, which can be sent signals; all its streams are pipes."""
    command = [sys.executable, "-c", "from ringkv.cli.main import main; main()", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace")


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model.save(tmp_path_factory.mktemp("tiny-chat"))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """Run one command line; arguments of any kind become text."""
    monkeypatch.delenv("RINGKV_DEBUG", raising=False)

    def call(*arguments: object) -> Said:
        capsys.readouterr()
        return Said(run([str(one) for one in arguments]), *capsys.readouterr())

    yield call
    logging.getLogger("ringkv").handlers.clear()
