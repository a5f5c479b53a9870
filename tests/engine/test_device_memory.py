import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ringkv.base.errors import RingKVError
from ringkv.engine import device_memory
from ringkv.engine.device_memory import free_bytes, free_bytes_elsewhere
from tests.refusals import refusal


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda with two devices; cuda:1 has 70 of 80 GB free."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    free = {torch.device("cuda:0"): 10, torch.device("cuda:1"): 70}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[device], 80))


@pytest.mark.usefixtures("two_gpus")
def test_the_free_memory_is_that_of_the_named_device() -> None:
    assert [free_bytes(name) for name in ("cuda", "cuda:0", "cuda:1", "cpu", None)] == [10, 10, 70, None, None]


@pytest.mark.usefixtures("two_gpus")
def test_a_device_beyond_the_last_is_refused_by_name() -> None:
    with refusal("device", "'cuda:2' .* cuda:1"):
        free_bytes("cuda:2")


@pytest.mark.slow  # loads torch in a process
def test_another_processs_refusal_is_raised_here() -> None:
    """Also where there is a GPU: nothing is called "toaster"."""
    with refusal("device", "'toaster'"):
        free_bytes_elsewhere("toaster")


def test_another_processs_number_is_returned_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ntest "$4" = cuda:1 && echo 70\n')
    python.chmod(0o755)
    monkeypatch.setattr(device_memory.sys, "executable", str(python))
    assert free_bytes_elsewhere("cuda:1") == 70
    assert [free_bytes_elsewhere(name) for name in ("cpu", "cpu:0", None)] == [None] * 3


def test_a_device_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "LIMIT_S", 0.01)
    with pytest.raises(RingKVError, match=r"cuda:0 took over 0\.01 s"):
        free_bytes_elsewhere("cuda:0")


def test_a_cpu_is_answered_without_torch() -> None:
    code = "import sys; from ringkv.engine.device_memory import *; free_bytes('cpu'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
