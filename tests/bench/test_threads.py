import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.threads import Round, _loss, _nice, shown


def test_the_loss_is_the_median_of_each_turns() -> None:
    turns = [
        Round(alone=9.0, served=10.0, http=1.0, clients=0.5),
        Round(9.5, 10.0, 1.0, 0.5),
        Round(16.0, 20.0, 2.0, 0.5),
    ]
    found = _loss("as shipped", turns, generated=800)
    assert found.loss == pytest.approx(0.1)
    assert found.tokens_per_s == pytest.approx(80.0)
    assert "| as shipped | 9.5 s | 10.0 s | 10.0% | 80 | 1.0 s CPU | 0.5 s CPU |" in shown([vars(found)])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc, which Linux has")
def test_all_threads_of_a_process_get_the_priority() -> None:
    program = "import threading, sys; threading.Thread(target=sys.stdin.read).start(); print(1, flush=True)"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        _nice(process.pid, 10)
        threads = [int(one.name) for one in Path(f"/proc/{process.pid}/task").iterdir()]
        ranks = {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}
        process.kill()
    assert ranks == {10}
