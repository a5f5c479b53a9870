import os
import subprocess
import sys

import pytest

from ringkv.machine.environment import SPINS


def spin_count(**environment: str) -> str:
    """Return GOMP_SPINCOUNT after ringkv was imported."""
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    clean["PYTHONPATH"] = os.pathsep.join(sys.path)
    code = "import os, ringkv; print(os.environ.get('GOMP_SPINCOUNT'))"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")],
)
def test_the_users_wait_policy_is_not_overridden(chosen: dict[str, str], expected: str) -> None:
    assert spin_count(**chosen) == expected


def test_the_default_spin_is_short() -> None:
    assert spin_count() == SPINS
