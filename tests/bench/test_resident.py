import os
from pathlib import Path

import psutil
import pytest

from bench.resident import Resident, parse, resident

KB = 1024
SMAPS = """\
7f0000000000-7f0000010000 r-xp 00000000 08:01 42    /usr/lib/libtorch_cpu.so
Rss:                 100 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
7f0000010000-7f0000020000 rw-p 00010000 08:01 42    /usr/lib/libtorch_cpu.so
Rss:                  30 kB
Anonymous:            20 kB
7f0000020000-7f0000030000 rw-p 00000000 00:00 0    [heap]
Rss:                  50 kB
Anonymous:            50 kB
7f0000030000-7f0000040000 rw-p 00000000 00:00 0
Rss:                   7 kB
Anonymous:             7 kB
"""


def test_pages_of_a_file_count_as_files_unless_they_were_modified() -> None:
    found = parse(SMAPS.splitlines())
    assert found == Resident(total=187 * KB, own=77 * KB, files=110 * KB, largest={"libtorch_cpu.so": 110 * KB})


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc, which Linux has")
def test_the_resident_bytes_of_this_process_are_those_of_psutil() -> None:
    assert resident().total == pytest.approx(psutil.Process(os.getpid()).memory_info().rss, rel=0.1)
