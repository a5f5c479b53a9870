"""How long OpenMP's threads wait for each other by spinning before they sleep.

A step crosses hundreds of barriers. GNU OpenMP spins at each for milliseconds, which is fastest on an idle machine and
ruinous on a busy one: a thread that is not running lets the others spin out their time, and steps take several times as
long. A short spin costs a few percent when idle. `python -m bench.waiting` measures both.

OpenMP counts pauses. A spin must outlast what lies between two barriers of a step, a tenth of a millisecond: else
threads take turns at waking each other.
"""

import os

SPINS = "2000"


def spin_briefly() -> None:
    """Set GOMP_SPINCOUNT, unless the user chose how to wait. Only has effect before torch is loaded."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
