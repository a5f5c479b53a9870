"""Decode attention's Triton kernels on the CPU, in a process whose Triton interprets: it is one or the other."""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from unittest.mock import patch

import torch

Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # the output; keys and values afterwards


@contextmanager
def interpreter() -> Iterator[ProcessPoolExecutor]:
    """A pool of one; a process that has loaded Triton without the interpreter cannot change its mind."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with patch.dict(os.environ, TRITON_INTERPRET="1"):
            pool.submit(attend, *_smallest(), (1, 16)).result()  # starts the process
        yield pool


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    entry: torch.Tensor,
    live: torch.Tensor,
    cut: tuple[int, int] | None,
) -> Result:
    """With so many splits and so large blocks; as the table says if `cut` is None."""
    from ringkv.kernels.gpu.decode_attend import decode_attend, launch
    from ringkv.kernels.gpu.tiling import Tiling

    tensors = (q, k, v, keys, values, entry, live)
    try:
        out = decode_attend(*tensors) if cut is None else launch(*tensors, Tiling(*cut, warps=4, stages=3))
    except Exception as error:  # one of Triton's own would load Triton where it is received
        raise RuntimeError(str(error)) from None
    return out, keys, values


def _smallest() -> list[torch.Tensor]:
    one = torch.ones(1, dtype=torch.int32)
    return [torch.ones(1, 1, 1, 16), *[torch.ones(1, 1, 16)] * 2, *[torch.ones(1, 1, 16, 16)] * 2, one - 1, one]
