import os
import subprocess
import sys

import pytest

from ringkv.machine import waiting


def found(**environment: str) -> str:
    """GOMP_SPINCOUNT as torch finds it after ringkv was imported."""
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    clean["PYTHONPATH"] = os.pathsep.join(sys.path)
    code = "import os, ringkv; print(os.environ.get('GOMP_SPINCOUNT'))"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
def test_the_user_chooses_how_to_wait(chosen: dict[str, str], expected: str) -> None:
    assert found(**chosen) == expected


def test_threads_spin_briefly() -> None:
    assert found() == waiting.SPINS
