import time

import torch

from ringkv.bench.bandwidth import Probe, seconds

CPU = torch.device("cpu")


def test_a_run_never_lowers_the_best() -> None:
    probe = Probe(CPU, size=1 << 20)
    probe.run()
    first = probe.best
    probe.run()
    assert probe.best >= first > 0


def test_seconds_are_seconds() -> None:
    assert 0.02 <= seconds(lambda: time.sleep(0.02), CPU) < 2
