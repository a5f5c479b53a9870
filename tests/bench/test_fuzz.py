"""Fuzzing: the first inputs of each target pass, and what goes wrong in a child is found."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from bench.fuzz.target import Target, run_case
from ringkv.base.errors import InvalidRequest

SMALL = 100  # MB


def target(run: Callable[[Any], Any], seconds: float = 60.0) -> Target:
    return Target("a test", lambda random: random.random(), run, lambda: None, seconds=seconds, memory_mb=SMALL)


def take_memory(_: Any) -> None:
    assert bytearray(os.urandom(1 << 20) * 2 * SMALL)


def refuse(message: str) -> Callable[[Any], None]:
    def run(_: Any) -> None:
        raise InvalidRequest(message)

    return run


@pytest.mark.parametrize(
    ("run", "found"),
    [
        (lambda _: None, "passed"),
        (refuse("no"), "passed"),
        (refuse("no\nat line 2"), "several lines"),
        (lambda _: 1 / 0, "ZeroDivisionError"),
        (lambda _: os.kill(os.getpid(), signal.SIGSEGV), "crash: the child ended with status -11"),
        (take_memory, "memory"),
        (lambda _: bytearray(64 << 30), "MemoryError"),
    ],
)
def test_what_happens_in_a_child_is_reported(run: Callable[[Any], Any], found: str) -> None:
    outcome = run_case(target(run), seed=0, number=0)
    assert found in outcome.sentence
    assert outcome.is_finding == (found != "passed")


def test_a_child_that_does_not_end_is_reported() -> None:
    outcome = run_case(target(lambda _: time.sleep(60), seconds=1.0), seed=0, number=0)
    assert outcome.sentence.startswith("hang: still running after")
    assert outcome.is_finding


def test_a_case_is_the_same_on_every_call() -> None:
    made = target(lambda _: None)
    assert made.case(3, 7) == made.case(3, 7) != made.case(3, 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["config", "gguf", "grammars", "safetensors", "templates", "tokenizers"])
def test_the_command_finds_nothing(name: str) -> None:
    command = [sys.executable, "-m", "bench.fuzz", name, "--minutes", "0.05", "--seed", "5"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, "0 findings" in ended.stdout) == (0, True), ended.stdout + ended.stderr
