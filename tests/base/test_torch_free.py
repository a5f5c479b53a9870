"""These rooms never import torch, so a process that only serves HTTP starts quickly."""

import subprocess
import sys
from pathlib import Path

import pytest

import ringkv

ROOM = Path(ringkv.__file__).parent


def modules(room: str) -> list[str]:
    names = (path.relative_to(ROOM.parent).with_suffix("") for path in sorted((ROOM / room).rglob("*.py")))
    return [".".join(name.parts).removesuffix(".__init__") for name in names]


@pytest.mark.parametrize("room", ["base", "machine", "scheduler", "worker"])
def test_importing_it_does_not_load_torch(room):
    code = f"import sys, {', '.join(modules(room))}; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_base_and_scheduler_need_no_msgspec():
    names = [*modules("base"), *modules("machine"), *modules("scheduler")]
    code = f"import sys; sys.modules['msgspec'] = None; import {', '.join(names)}"
    subprocess.run([sys.executable, "-c", code], check=True)
