import os
import sys
from pathlib import Path

import pytest

from ringkv.weights.read_ahead import read_ahead


def read_bytes() -> int:
    """Return the bytes that this process has read so far, as counted by the system."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="the system does not count what a process reads")
def test_every_shard_is_read_to_its_end_and_nothing_else(tmp_path: Path) -> None:
    for name in ("model-1.safetensors", "model-2.safetensors", "notes.bin"):
        (tmp_path / name).write_bytes(os.urandom(9_000_000))
    before = read_bytes()
    read_ahead(tmp_path).join()
    assert 18_000_000 <= read_bytes() - before < 20_000_000


def test_a_file_that_cannot_be_read_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").mkdir()
    read_ahead(tmp_path).join()


def test_it_needs_no_torch() -> None:
    import subprocess

    code = "import sys, ringkv.weights.read_ahead; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
