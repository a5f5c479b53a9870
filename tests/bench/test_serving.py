import os
import stat
import sys
from pathlib import Path

import pytest

from bench.serving import serving

READY = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(STATUS))
print("http://127.0.0.1:81", flush=True)
time.sleep(60)
"""


def program(folder: Path, text: str) -> Path:
    """Write a stand-in for `ringkv`."""
    path = folder / "ringkv"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_server_runs_until_the_block_ends(tmp_path: Path) -> None:
    with serving("--slots", 2, ringkv=program(tmp_path, READY.replace("STATUS", "0"))) as server:
        assert (server.url, server.port) == ("http://127.0.0.1:81", 81)
        os.kill(server.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_a_server_that_ends_badly_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="exit status is 3"),
        serving(ringkv=program(tmp_path, READY.replace("STATUS", "3"))),
    ):
        pass


def test_a_server_that_is_never_ready_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="status 4"),
        serving(ringkv=program(tmp_path, "raise SystemExit(4)")),
    ):
        pass
