"""A fake CUDA device: Triton compiles kernels for it, as at a real launch, and does not run them."""

import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from ringkv.base.cache_spec import FETCH_COUNTS, CacheSpec, PlaneFormat
from ringkv.base.zip_sizes import ZipSizes
from ringkv.cache.formats.registry import storage
from ringkv.kernels.encoded_attend import EncodedPlanes
from ringkv.kernels.gpu.append_token import append_token
from ringkv.kernels.gpu.attend_buffer import attend_buffer, note_attention
from ringkv.kernels.gpu.attend_bytes import attend_bytes
from ringkv.kernels.gpu.attend_chunks import attend_chunks
from ringkv.kernels.gpu.attend_nibbles import attend_nibbles
from ringkv.kernels.gpu.attend_split import attend_split
from ringkv.kernels.gpu.cache_split import cache_split
from ringkv.kernels.gpu.complete_page import complete_page
from ringkv.kernels.gpu.encoded_latent_split import encoded_latent_split
from ringkv.kernels.gpu.encoded_latents import LatentPlanes
from ringkv.kernels.gpu.expert_products import down_tile, gated_tile
from ringkv.kernels.gpu.heads_split import heads_split
from ringkv.kernels.gpu.latent_prefill import latent_prefill
from ringkv.kernels.gpu.latent_split import latent_split
from ringkv.kernels.gpu.merge_latents import merge_latents
from ringkv.kernels.gpu.merge_splits import merge_splits
from ringkv.kernels.gpu.move_pages import move_pages
from ringkv.kernels.gpu.pages_split import pages_split
from ringkv.kernels.gpu.place_pages import place_pages
from ringkv.kernels.gpu.place_pairs import count_pairs, place_pairs
from ringkv.kernels.gpu.rank_pairs import rank_pairs
from ringkv.kernels.gpu.rotate_queries import rotate_queries
from ringkv.kernels.gpu.score_pages import score_pages
from ringkv.kernels.gpu.select_pages import select_pages
from ringkv.kernels.gpu.sum_experts import sum_experts
from ringkv.kernels.gpu.tiling import H100, Chip
from ringkv.kernels.gpu.top_k_experts import top_k_experts
from ringkv.kernels.gpu.write_latent import write_latent
from ringkv.kernels.gpu.write_token import write_token
from ringkv.kernels.zip_slots import allocate

SHARED_BYTES = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # limit of one program, by compute capability
KERNELS = (
    *(attend_split, cache_split, merge_splits, latent_split, latent_prefill),
    *(heads_split, complete_page, score_pages, select_pages, place_pages, move_pages, pages_split),
    *(write_token, rotate_queries, attend_bytes, attend_nibbles),
    *(write_latent, encoded_latent_split, merge_latents),
    *(append_token, attend_buffer, attend_chunks, note_attention),
    *(top_k_experts, rank_pairs, count_pairs, place_pairs, gated_tile, down_tile, sum_experts),
)
CHIPS = {80: Chip(108, 164 << 10, 8), 90: H100, 100: Chip(148, 228 << 10, 10)}
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
    try:
        with (
            FakeTensorMode(),
            patch.object(FakeTensor, "data_ptr", lambda _: 0),  # Triton checks its alignment
            patch("ringkv.kernels.gpu.decode_attend.chip", lambda _: H100),
            patch("ringkv.kernels.gpu.heads_attend.chip", lambda _: H100),
            patch("ringkv.kernels.gpu.encoded_attend.chip", lambda _: CHIPS[capability]),
            patch("ringkv.kernels.gpu.zip_attend.chip", lambda _: CHIPS[capability]),
            patch("ringkv.kernels.gpu.experts.chip", lambda _: CHIPS[capability]),
            patch("ringkv.kernels.gpu.latent_attend.chip", lambda _: CHIPS[capability]),
            patch("ringkv.kernels.gpu.encoded_latents.chip", lambda _: CHIPS[capability]),
        ):
            yield absent
    finally:
        driver.set_active(before)
        for kernel in KERNELS:
            kernel.device_caches.pop(capability, None)


def stack_bytes(kernel: Any, folder: Path) -> int:
    """Return the bytes that a compiled kernel spills, from NVIDIA's cuobjdump, which Triton includes."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    usage = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    (found,) = re.findall(r"STACK:(\d+)", usage)
    return int(found)


def inputs(
    dtype: torch.dtype, groups: int, width: int, rows: int = 3, heads: int = 2, capacity: int = 4096
) -> list[torch.Tensor]:
    """Return q, k, v, keys, values, slot, entry, live of `decode_attend`, with 2 * rows slots, in `absent_device`."""
    planes = [(2 * rows, heads, capacity, width)] * 2
    shapes = [(rows, heads, groups, width), *[(rows, heads, width)] * 2, *planes]
    return [*_tensors(shapes, dtype), *_tensors([(rows,)] * 3, torch.int32)]


def heads_inputs(dtype: torch.dtype, groups: int, width: int, rows: int = 3, heads: int = 2) -> list[torch.Tensor]:
    """Return q, k, v, keys, values, places, slot, entry, live of `decode_attend_heads`."""
    planes = [(2 * rows, 1, heads * 4096 * 4, width)] * 2
    shapes = [(rows, heads, groups, width), *[(rows, heads, width)] * 2, *planes]
    return [*_tensors(shapes, dtype), *_tensors([(2 * rows, heads, 2), *[(rows,)] * 3], torch.int32)]


def pages_inputs(
    dtype: torch.dtype, groups: int, width: int, page: int = 32, rows: int = 3, heads: int = 2, capacity: int = 4096
) -> list[torch.Tensor]:
    """Return q, k, v, keys, values, digests, pins, counts, slot, entry, live of `decode_attend_pages`."""
    planes = [(2 * rows, heads, capacity, width)] * 2
    shapes = [(rows, heads, groups, width), *[(rows, heads, width)] * 2, *planes]
    digests = (2 * rows, heads, capacity // page, 2, width)
    pins = _tensors([digests[:3]], torch.float32)
    return [*_tensors([*shapes, digests], dtype), *pins, *_tensors([(2 * rows, 5), *[(rows,)] * 3], torch.int32)]


def recall_inputs(
    dtype: torch.dtype, groups: int, width: int, page: int = 32, heads: int = 2, capacity: int = 4096, places: int = 20
) -> list[torch.Tensor]:
    """Return q, k, v, keys and values of the host, digests, pins, counts, residents, slot, entry, live."""
    q, k, v, *hosts, digests, pins, counts, slot, entry, live = pages_inputs(
        dtype, groups, width, page, heads=heads, capacity=capacity
    )
    slots = counts.shape[0]
    planes = _tensors([(slots, heads, places * page, width)] * 2, dtype)
    counts_of_maps = capacity // page, places, places, FETCH_COUNTS
    maps = _tensors([(slots, heads, count) for count in counts_of_maps], torch.int32)
    return [q, k, v, *hosts, digests, pins, counts, *planes, *maps, slot, entry, live]


def cache_inputs(
    dtype: torch.dtype, fresh: int, groups: int, width: int, rows: int = 3, heads: int = 2, capacity: int = 4096
) -> list[torch.Tensor]:
    """Return q, keys, values, slot, holes, live of `cache_attend`."""
    planes = [(2 * rows, heads, capacity, width)] * 2
    shapes = [(rows, heads, fresh * groups, width), *planes]
    return [*_tensors(shapes, dtype), *_tensors([(rows,), (rows, fresh), (rows,)], torch.int32)]


def encoded_inputs(
    name: PlaneFormat, dtype: torch.dtype, groups: int, width: int, exact: int, rows: int = 3, heads: int = 2
) -> list[Any]:
    """Return q, k, v, the planes, centers with `exact` first keys, slot, entry, live of `encoded_attend`."""
    vectors = _tensors([(rows, heads, groups, width), *[(rows, heads, width)] * 2], dtype)
    shape = 2 * rows, heads, 4096, width
    allocate = partial(torch.empty, device="cuda")
    both = CacheSpec.grouped(heads, width).stored_as(name).planes
    planes = [part for plane in both for part in storage(plane).allocate(shape, allocate)]
    (centers,) = _tensors([(2 * rows, heads, (1 + exact) * width)], torch.float32)
    return [*vectors, EncodedPlanes(*planes, centers), *_tensors([(rows,)] * 3, torch.int32)]


def latent_inputs(
    name: PlaneFormat, dtype: torch.dtype, groups: int, width: int, exact: int = 4, rows: int = 8, capacity: int = 8192
) -> list[Any]:
    """Return q, k, the planes, slot, entry, live of attention over encoded latents, with 2 * rows slots."""
    vectors = _tensors([(rows, 1, groups, width), (rows, 1, width)], dtype)
    (plane,) = CacheSpec.latent(width, 0).stored_as(name).planes
    parts = storage(plane).allocate((2 * rows, 1, capacity, width), partial(torch.empty, device="cuda"))
    (centers,) = _tensors([(2 * rows, 1, (1 + exact) * width)], torch.float32)
    return [*vectors, LatentPlanes(*parts, centers), *_tensors([(rows,)] * 3, torch.int32)]


def zip_inputs(
    dtype: torch.dtype, groups: int, width: int, rows: int = 3, heads: int = 2, capacity: int = 4096
) -> list[torch.Tensor]:
    """Return q, k, v, the slots, slot, live of `decode_attend_zip`, without an entry."""
    vectors = _tensors([(rows, heads, groups, width), *[(rows, heads, width)] * 2], dtype)

    def new(shape: tuple[int, ...], dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="cuda")

    slots = allocate((2 * rows, heads), width, ZipSizes.of(capacity), new)
    return [*vectors, *slots, *_tensors([(rows,)] * 2, torch.int32)]


def _tensors(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=dtype, device="cuda") for shape in shapes]
