"""shipped: the libraries of C++ operators that a wheel contains, compiled for levels of processors and a torch.

    kernels/binaries/torch-2.13/avx2.so

The operators use libtorch's C++ interface, which is stable within a minor version of torch only. `scripts/wheel.py`
builds the libraries; a checkout has none.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from ringkv.machine.processor import instructions, refuses_amx

FOLDER = Path(__file__).parent / "binaries"
ALLOWED: Mapping[str, Collection[str]] = {"AVX2": ("AVX2",), "AVX512": ("AVX2", "AVX512")}  # by torch's capability


class Level(NamedTuple):
    """A kind of processor. flags: of the compiler. needs: Linux's names of the instructions that these flags allow."""

    capability: str
    flags: str
    needs: str


V3, V4 = "avx avx2 abm bmi1 bmi2 f16c fma movbe", "avx512f avx512bw avx512cd avx512dq avx512vl"
V4_BF16 = f"{V3} {V4} avx512_vnni avx512_bf16 avx512vbmi"
V4_BF16_FLAGS = "-march=x86-64-v4 -mavx512vnni -mavx512bf16 -mavx512vbmi"
LEVELS: Mapping[str, Level] = {
    "amx": Level(
        "AVX512",
        f"{V4_BF16_FLAGS} -mamx-tile -mamx-bf16 -mamx-int8 -mtune=sapphirerapids",
        f"{V4_BF16} amx_tile amx_bf16 amx_int8",
    ),
    "avx512-bf16": Level("AVX512", f"{V4_BF16_FLAGS} -mtune=znver3", V4_BF16),
    "avx512-vnni": Level("AVX512", "-march=x86-64-v4 -mavx512vnni -mtune=icelake-server", f"{V3} {V4} avx512_vnni"),
    "avx512": Level("AVX512", "-march=x86-64-v4 -mtune=skylake-avx512", f"{V3} {V4}"),
    "avx2-vnni": Level("AVX2", "-march=x86-64-v3 -mavxvnni -mtune=alderlake", f"{V3} avx_vnni"),
    "avx2": Level("AVX2", "-march=x86-64-v3 -mtune=znver3", V3),
}  # the fastest first


def fitting() -> Path | None:
    """Return the fastest library for this processor and torch; None if the package has none that fits."""
    names = (name for name, level in LEVELS.items() if _runs(level))
    paths = (library(name, FOLDER) for name in names)
    return next((path for path in paths if path.is_file()), None)


def library(name: str, folder: Path) -> Path:
    """Return the path of a level's library, for this torch, in a folder."""
    return folder / f"torch-{'.'.join(torch.__version__.split('.')[:2])}" / f"{name}.so"


def _runs(level: Level) -> bool:
    """Whether the processor has all instructions of the level, and torch's vectors are not limited to shorter ones."""
    if "amx_tile" in level.needs and refuses_amx():
        return False
    allowed = ALLOWED.get(torch.backends.cpu.get_cpu_capability(), ())
    return level.capability in allowed and instructions() >= set(level.needs.split())
