"""How long OpenMP threads spin at a barrier before they sleep.

A step has hundreds of barriers. GNU OpenMP spins at each for milliseconds, which is fastest on an idle machine. On a
busy machine threads spin while the thread that they wait for is not scheduled, and steps take several times as long.
A short spin costs a few percent on an idle machine. `python -m bench.waiting` measures both.

The unit is pause instructions. A spin must last longer than the work between two barriers, a tenth of a millisecond,
or threads spend their time waking each other.
"""

import os

SPINS = "2000"


def spin_briefly() -> None:
    """Set GOMP_SPINCOUNT, unless the user set a wait policy. It has an effect only before torch is loaded."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
