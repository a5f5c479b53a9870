import subprocess
import sys

import pytest

from bench.startup import run


def test_a_run_is_timed_to_its_first_byte_and_to_its_end() -> None:
    busy = "t = time.process_time()\nwhile time.process_time() < t + 0.3: pass"
    found = run([sys.executable, "-c", f"import time\nprint('x', flush=True)\n{busy}"])
    assert found.first_s + 0.3 <= found.whole_s
    assert found.cpu_s >= 0.3


def test_a_command_that_fails_is_not_a_figure() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run([sys.executable, "-c", "raise SystemExit(3)"])
