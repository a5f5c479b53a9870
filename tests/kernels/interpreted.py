"""The Triton kernels on the CPU, in a process that runs Triton's interpreter."""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from ringkv.kernels.slots import Pages, Rows, Slots

SCALE = 0.11
Result = tuple[Tensor, Tensor]  # out and lse
Cut = tuple[int, int] | None  # splits and entries a tile; the usual tiling if None
Inputs = tuple[Tensor, Tensor | None, Tensor | None, Slots, Rows]


@contextmanager
def interpreter() -> Iterator[ProcessPoolExecutor]:
    """Return a pool of one process: one that has loaded Triton without the interpreter cannot enable it later."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with patch.dict(os.environ, TRITON_INTERPRET="1"):
            pool.submit(decode_attend, _smallest(), (1, 16)).result()  # starts the process
        yield pool


def decode_attend(inputs: Inputs, cut: Cut) -> tuple[Result, Slots]:
    """Run on q, k, v, slots, rows. Return the result, and the slots afterwards."""
    from ringkv.kernels.gpu.tiling import Tiling

    found: Result = _call("decode_attend", "decode_attend", *inputs, SCALE, cut and Tiling(*cut, warps=4, stages=3))
    return found, inputs[3]


def pages_selected(scores: Tensor, reading: Pages, rows: Rows, page: int) -> Result:
    """Return the pages of each head, and the live entries in them, for float32 scores [B, H, G, P]."""
    selection = _call("select_pages", "selected", scores, reading, rows, page)
    return selection.pages, selection.lengths


def written(inputs: Inputs) -> Slots:
    """Write k, v to slots of an encoding. Return the slots."""
    from ringkv.kernels.gpu.step import Step

    _call("entries", "write", Step.of(*inputs, SCALE), import_module("ringkv.kernels.gpu.readings").EVERY)
    return inputs[3]


def written_latents(inputs: Inputs) -> Slots:
    """Write k to slots of encoded latents. Return the slots."""
    from ringkv.kernels.gpu.forms import FORMS
    from ringkv.kernels.gpu.step import Step

    _call("latent_attend", "write", Step.of(*inputs, SCALE), FORMS[inputs[3].encoding])
    return inputs[3]


def experts(*inputs: Any) -> Tensor:
    """Run on the arguments of `gpu.experts.experts`."""
    found: Tensor = _call("experts", "experts", *inputs)
    return found


def route(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Run on the arguments of `gpu.route.route`."""
    found: tuple[Tensor, Tensor, Tensor] = _call("route", "route", *inputs)
    return found


def ranked(chosen: Tensor, count: int) -> list[Tensor]:
    """Return order and bounds of `gpu.sort_by_expert.ranked`."""
    return list(_call("sort_by_expert", "ranked", chosen, count))


def placed(chosen: Tensor, count: int) -> list[Tensor]:
    """Return order and bounds of `gpu.sort_by_expert.placed`."""
    return list(_call("sort_by_expert", "placed", chosen, count))


def prefill_latent(q: Tensor, latents: Tensor, start: int) -> Result:
    found: Result = _call("latent_attend", "prefill_latent", q, latents, start, SCALE)
    return found


def _call(module: str, name: str, *arguments: Any) -> Any:
    try:
        return getattr(import_module(f"ringkv.kernels.gpu.{module}"), name)(*arguments)
    except Exception as error:  # unpickling one of Triton's would load Triton in the parent
        raise RuntimeError(str(error)) from None


def _smallest() -> Inputs:
    one = torch.ones(1, dtype=torch.int32)
    slots = Slots("plain", (torch.ones(1, 1, 16, 16), torch.ones(1, 1, 16, 16)))
    vectors = torch.ones(1, 1, 1, 16), torch.ones(1, 1, 16), torch.ones(1, 1, 16)
    return *vectors, slots, Rows(one - 1, one - 1, one)
