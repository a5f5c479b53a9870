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

from ringkv.kernels.encoded_attend import EncodedPlanes

SCALE = 0.11
Result = tuple[torch.Tensor, torch.Tensor]  # out and lse
Cut = tuple[int, int] | None  # splits and entries a tile; the usual tiling if None


@contextmanager
def interpreter() -> Iterator[ProcessPoolExecutor]:
    """Return a pool of one process: one that has loaded Triton without the interpreter cannot enable it later."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with patch.dict(os.environ, TRITON_INTERPRET="1"):
            pool.submit(decode_attend, _smallest(), (1, 16)).result()  # starts the process
        yield pool


def decode_attend(inputs: list[torch.Tensor], cut: Cut) -> tuple[Result, list[torch.Tensor]]:
    """Run on q, k, v, keys, values, slot, entry, live. Return the result, and keys and values afterwards."""
    return _run("decode_attend", inputs, cut), inputs[3:5]


def cache_attend(inputs: list[torch.Tensor], cut: Cut) -> Result:
    """Run on q, keys, values, slot, holes, live."""
    return _run("cache_attend", inputs, cut)


def heads_attend(inputs: list[Any], cut: Cut) -> tuple[Result, list[torch.Tensor]]:
    """Run on the arguments of `decode_attend_heads`. Return the result, and keys and values afterwards."""
    return _run("decode_attend_heads", inputs, cut, "heads_attend"), inputs[3:5]


def pages_attend(inputs: list[Any], cut: Cut, *means: torch.Tensor) -> tuple[Result, list[torch.Tensor]]:
    """Run on the arguments of `decode_attend_pages`. Return the result, and all that may be written afterwards."""
    return _run("decode_attend_pages", inputs, cut, "pages_attend", *means), [*inputs[3:6], *means]


def recall_attend(inputs: list[Any], cut: Cut) -> tuple[Result, list[torch.Tensor]]:
    """Run on the arguments of `decode_attend_recall`. Return the result, and all that may be written afterwards."""
    return _run("decode_attend_recall", inputs, cut, "recall_attend"), inputs[3:14]


def recall_prefetch(inputs: list[Any]) -> list[torch.Tensor]:
    """Run on the arguments of `prefetch_recall`. Return all that may be written, and what is between."""
    _call("recall_attend", "prefetch_recall", *inputs, SCALE)
    return inputs[1:]


def pages_selected(inputs: list[torch.Tensor], page: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Run on scores, pins, counts, slot, live. Return the pages of each head, and the live entries in them."""
    found: tuple[torch.Tensor, torch.Tensor] = _call("pages_attend", "selected", *inputs, page)
    return found


def encoded_attend(name: str, inputs: list[torch.Tensor], cut: Cut) -> tuple[Result, list[torch.Tensor]]:
    """Run on the arguments of `kernels.encoded_attend` in this format. Return the result, and the planes afterwards."""
    from ringkv.kernels.gpu.forms import FORMS

    arguments = [FORMS[name], *inputs[:3], EncodedPlanes(*inputs[3:8]), *inputs[8:]]
    return _run("decode_attend", arguments, cut, "encoded_attend"), inputs[3:7]


def encoded_write(name: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Write k, v to the planes of this format, with centers, slot, entry, live. Return the planes."""
    from ringkv.kernels.gpu.forms import FORMS

    _call("encoded_attend", "write", FORMS[name], *inputs[:2], EncodedPlanes(*inputs[2:7]), *inputs[7:])
    return inputs[2:6]


def zip_attend(inputs: list[Any], cut: Cut) -> tuple[Result, list[torch.Tensor]]:
    """Run on the arguments of `decode_attend_zip`, without an entry. Return the result, and the slots afterwards."""
    from ringkv.kernels.gpu.tiling import Tiling
    from ringkv.kernels.gpu.zip_attend import Cut as Both

    both = cut and Both(*[Tiling(*cut, warps=4, stages=2)] * 2)
    found: Result = _call("zip_attend", "decode_attend_zip", *inputs, SCALE, cut=both)
    return found, inputs[3:14]


def experts(*inputs: Any) -> torch.Tensor:
    """Run on the arguments of `gpu.experts.experts`."""
    found: torch.Tensor = _call("experts", "experts", *inputs)
    return found


def route(*inputs: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run on the arguments of `gpu.route.route`."""
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _call("route", "route", *inputs)
    return found


def ranked(chosen: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Return order and bounds of `gpu.sort_by_expert.ranked`."""
    return list(_call("sort_by_expert", "ranked", chosen, count))


def placed(chosen: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Return order and bounds of `gpu.sort_by_expert.placed`."""
    return list(_call("sort_by_expert", "placed", chosen, count))


def decode_latent(inputs: list[torch.Tensor], cut: Cut) -> tuple[Result, torch.Tensor]:
    """Run on q, k, latents, slot, entry, live. Return the result, and latents afterwards."""
    return _run("decode_attend_latent", inputs, cut, "latent_attend"), inputs[2]


def encoded_latent(name: str, inputs: list[torch.Tensor], cut: Cut) -> tuple[Result, list[torch.Tensor]]:
    """Run on q, k, the planes, slot, entry, live in this format. Return the result, and the planes afterwards."""
    from ringkv.kernels.gpu.encoded_latents import LatentPlanes
    from ringkv.kernels.gpu.latent_forms import LATENT_FORMS

    arguments = [LATENT_FORMS[name], *inputs[:2], LatentPlanes(*inputs[2:5]), *inputs[5:]]
    return _run("decode_attend", arguments, cut, "encoded_latents"), inputs[2:4]


def encoded_latent_write(name: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Write k to the planes of this format, with slot, entry, live. Return latents and scales."""
    from ringkv.kernels.gpu.encoded_latents import LatentPlanes
    from ringkv.kernels.gpu.latent_forms import LATENT_FORMS

    _call("encoded_latents", "write", LATENT_FORMS[name], inputs[0], LatentPlanes(*inputs[1:4]), *inputs[4:])
    return inputs[1:3]


def prefill_latent(q: torch.Tensor, latents: torch.Tensor, start: int) -> Result:
    found: Result = _call("latent_attend", "prefill_latent", q, latents, start, SCALE)
    return found


def _run(name: str, inputs: list[Any], cut: Cut, module: str = "decode_attend", *others: Any) -> Result:
    from ringkv.kernels.gpu.tiling import Tiling

    found: Result = _call(module, name, *inputs, SCALE, *others, cut=cut and Tiling(*cut, warps=4, stages=3))
    return found


def _call(module: str, name: str, *arguments: Any, **more: Any) -> Any:
    try:
        return getattr(import_module(f"ringkv.kernels.gpu.{module}"), name)(*arguments, **more)
    except Exception as error:  # unpickling one of Triton's would load Triton in the parent
        raise RuntimeError(str(error)) from None


def _smallest() -> list[torch.Tensor]:
    one = torch.ones(1, dtype=torch.int32)
    planes = [torch.ones(1, 1, 16, 16)] * 2
    return [torch.ones(1, 1, 1, 16), *[torch.ones(1, 1, 16)] * 2, *planes, one - 1, one - 1, one]
