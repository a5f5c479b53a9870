"""Environment variables that torch and OpenMP read when they are loaded, unless the user set them."""

import os

SPINS = "2000"


def spin_briefly() -> None:
    """Bound how long OpenMP threads spin at a barrier before they sleep: set GOMP_SPINCOUNT.

    A step has hundreds of barriers. GNU OpenMP spins at each for milliseconds, which is fastest on an idle machine. On
    a busy machine threads spin while the thread that they wait for is not scheduled, and steps take several times as
    long. A short spin costs a few percent on an idle machine. `python -m bench.waiting` measures both.

    The unit is pause instructions. A spin must last longer than the work between two barriers, a tenth of a
    millisecond, or threads spend their time waking each other.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def use_huge_pages() -> None:
    """Request huge pages for weights and caches: set THP_MEM_ALLOC_ENABLE. A system without them ignores it.

    A decode step reads all weights and caches, and 4 KiB pages slow it down by 5 to 20 percent.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
