"""A fake CUDA device: Triton compiles kernels for it, as at a real launch, and does not run them."""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.zip_sizes import ZipSizes
from ringkv.kernels.encoding import ENCODINGS, LATENT_ENCODINGS, Encoding
from ringkv.kernels.gpu.tiling import chip
from ringkv.kernels.slots import Pages, Ragged, Residents, Rows, Slots
from ringkv.kernels.zip_slots import allocate

SHARED_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # limit of one program, by compute capability
PROCESSORS = {80: 108, 90: 132, 100: 148}
SLOTS, HEADS, ROWS, CAPACITY, PAGE, PLACES, EXACT = 6, 2, 3, 4096, 32, 20, 4
THREADS = 1024

Grid = tuple[int, int, int]


class Absent:
    """The interface that Triton needs from a driver. A kernel with too much shared memory raises OutOfResources."""

    def __init__(self, capability: int) -> None:
        self.capability = capability
        self.launches: list[tuple[str, Grid]] = []
        self.utils = SimpleNamespace(
            load_binary=lambda *_: (self, self, 0, 0, THREADS),
            get_device_properties=lambda _: {"max_shared_mem": SHARED_BYTES[capability]},
        )

    def get_current_device(self) -> int:
        return self.capability  # no real device has this index, so they share no kernel cache

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        def launch(x: int, y: int, z: int, *_: object) -> None:
            self.launches.append((metadata.name, (x, y, z)))

        return launch

    def made(self, kernel: Any) -> Sequence[Any]:
        """Return all compiled specialisations of a kernel."""
        return list(kernel.device_caches[self.capability][0].values())


@contextmanager
def absent_device(capability: int) -> Iterator[Absent]:
    """Inside the context, operators on fake CUDA tensors compile their kernels for this compute capability."""
    before, absent = driver._active, Absent(capability)
    driver.set_active(absent)
    chip.cache_clear()
    try:
        with (
            FakeTensorMode(),
            patch.object(FakeTensor, "data_ptr", lambda _: 0),  # Triton checks its alignment
            patch("torch.cuda.get_device_properties", lambda _: _properties(capability)),
        ):
            yield absent
    finally:
        driver.set_active(before)
        chip.cache_clear()
        for kernel in _kernels():
            kernel.device_caches.pop(capability, None)


def _properties(capability: int) -> SimpleNamespace:
    return SimpleNamespace(
        multi_processor_count=PROCESSORS[capability],
        shared_memory_per_multiprocessor=SHARED_BYTES[capability] + 1024,
        major=capability // 10,
    )


def _kernels() -> list[triton.JITFunction[Any]]:
    """Return the Triton functions of all kernels that are loaded."""
    modules = [module for name, module in sys.modules.items() if name.startswith("ringkv.kernels.gpu.")]
    return [value for module in modules for value in vars(module).values() if isinstance(value, triton.JITFunction)]


def stack_bytes(kernel: Any, folder: Path) -> int:
    """Return the bytes that a compiled kernel spills, from NVIDIA's cuobjdump, which Triton includes."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    usage = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    (found,) = re.findall(r"STACK:(\d+)", usage)
    return int(found)


def step(
    encoding: PlaneFormat,
    reading: str,
    dtype: torch.dtype,
    groups: int,
    width: int,
    heads: int = HEADS,
    capacity: int = CAPACITY,
    page: int = PAGE,
    places: int = PLACES,
) -> tuple[Any, ...]:
    """Return q, k, v, slots and rows of a step, in `absent_device`."""
    vectors = [_empty(ROWS, heads, *shape, width, dtype=dtype) for shape in ((groups,), (), ())]
    shape = (SLOTS, 1, heads * capacity) if reading == "ragged" else (SLOTS, heads, capacity)
    planes = [part for _ in "kv" for part in _planes(ENCODINGS[encoding], shape, width, dtype)]
    slots = Slots(encoding, tuple(planes), _centers(ENCODINGS[encoding], heads, width))
    if reading == "ragged":
        slots = slots._replace(reading=Ragged(_empty(SLOTS, heads, 2)))
    if reading in ("pages", "residents"):
        digests = _empty(SLOTS, heads, capacity // page, 2, width, dtype=dtype)
        pins = _empty(*digests.shape[:3], dtype=torch.float32)
        slots = slots._replace(reading=Pages(digests, pins, _empty(SLOTS, 3)))
    if reading == "residents":
        on_device = [_empty(SLOTS, heads, places * page, width, dtype=dtype) for _ in "kv"]
        maps = _empty(SLOTS, heads, capacity // page), _empty(SLOTS, heads, places), _empty(SLOTS, heads)
        slots = slots._replace(reading=slots.reading._replace(residents=Residents(*on_device, *maps)))
    return *vectors, slots, _rows(ROWS)


def latent_step(
    encoding: PlaneFormat, dtype: torch.dtype, groups: int, width: int, rows: int = 8, capacity: int = 8192
) -> tuple[Any, ...]:
    """Return q, k, v, slots and rows of a step over latents."""
    vectors = [_empty(rows, 1, *shape, width, dtype=dtype) for shape in ((groups,), ())]
    planes = _planes(LATENT_ENCODINGS[encoding], (2 * rows, 1, capacity), width, dtype)
    centers = _centers(LATENT_ENCODINGS[encoding], 1, width, 2 * rows)
    return *vectors, None, Slots(encoding, tuple(planes), centers), _rows(rows)


def zip_step(dtype: torch.dtype, groups: int, width: int) -> tuple[Any, ...]:
    """Return q, k, v, slots and rows of a step over slots in chunks."""
    vectors = [_empty(ROWS, HEADS, *shape, width, dtype=dtype) for shape in ((groups,), (), ())]

    def new(shape: tuple[int, ...], dtype: torch.dtype = dtype) -> torch.Tensor:
        return _empty(*shape, dtype=dtype)

    slots = allocate((SLOTS, HEADS), width, ZipSizes.of(CAPACITY), new)
    return *vectors, Slots("zipcache", tuple(slots)), _rows(ROWS)


def _planes(encoding: Encoding, shape: tuple[int, ...], width: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [_empty(*shape, *part.shape(width), dtype=part.dtype or dtype) for part in encoding.parts]


def _centers(encoding: Encoding, heads: int, width: int, slots: int = SLOTS) -> torch.Tensor | None:
    return _empty(slots, heads, (1 + EXACT) * width, dtype=torch.float32) if encoding.has_centers else None


def _rows(count: int) -> Rows:
    return Rows(*(_empty(count) for _ in range(3)))


def _empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")
