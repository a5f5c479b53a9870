"""slice: two layers of DeepSeek-R1 at full width, from an fp8 checkpoint to decode in 4 bits beside the floor.

    python -m bench.slice [--folder FOLDER]

The checkpoint is made first: one dense and one expert layer of R1 (hidden 7168, 128 heads, 256 experts) with its
vocabulary, random fp8 matrices with a scale for each 128 x 128. It takes 15 GB of disk, and loading it 12 GB of memory.
Memory is what belongs to the process alone, without pages of mapped files. Steps are of 1 and of 8 different requests;
the floor reads the experts that they chose, which are counted. Run it on an idle machine.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.kernels import load_kernels
from bench.resident import Peak
from bench.results import TABLE, keep, table
from bench.steps import step_seconds
from ringkv.base.engine import prefill
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.bench.probe import Machine
from ringkv.engine.build import assemble
from ringkv.engine.engine import LocalEngine
from ringkv.engine.load import load
from ringkv.graphs.graph import Eager
from ringkv.machine.paths import cache_dir
from ringkv.models.config import ModelConfig, load_config
from ringkv.plan import floor
from ringkv.plan.floor import Cost
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.plan.shapes import configurations
from ringkv.weights.files import INDEX
from ringkv.weights.fp8 import SCALES, blocks

CUT = {"num_hidden_layers": 2, "first_k_dense_replace": 1, "max_position_embeddings": 4096}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
SHARD = 2 << 30  # bytes
LARGEST = 0x7E  # of the codes of e4m3 without sign; the next one is not a number
SPREAD = 110.0  # standard deviation of e4m3 numbers whose bits are random
SLOTS, PROMPT, BUDGET, STEPS, WARM, ROUNDS = 8, 256, 512, 12, 2, 3


@dataclass(frozen=True)
class SliceFigure:
    """rows: requests of a step; 0 for loading. distinct: experts that a step's rows chose, on average."""

    part: str
    rows: int = 0
    seconds: float | None = None
    share: float | None = None
    distinct: float | None = None
    weights_bytes: int | None = None
    peak_bytes: int | None = None
    entry_bytes: int | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=cache_dir() / "slice", help="of the checkpoint")
    parser.add_argument("--to", type=Path, default=TABLE, metavar="FILE", help="table to append to")
    args = parser.parse_args()
    if not (args.folder / INDEX).is_file():
        process = get_context("spawn").Process(target=make_checkpoint, args=(args.folder,))  # its memory ends with it
        process.start()
        process.join()
    figures = list(measured(args.folder))
    fields = [{k: v for k, v in vars(figure).items() if v is not None} for figure in figures]
    workload = {"model": "deepseek-r1, 2 of 61 layers", "weights": "int4", "threads": torch.get_num_threads()}
    keep("slice", workload, fields, shown(figures), args.to)


def shown(figures: Sequence[SliceFigure]) -> str:
    load, *steps = figures
    assert load.peak_bytes is not None
    assert load.weights_bytes is not None
    lines = [
        (f"step of {one.rows}", f"{1e3 * one.seconds:.1f} ms", f"{one.share:.0%}", f"{one.distinct:.1f}")
        for one in steps
        if one.seconds is not None
    ]
    return (
        f"loaded in {load.seconds:.0f} s: {load.weights_bytes / 1e9:.2f} GB of weights, at most "
        f"{(load.peak_bytes - load.weights_bytes) / 1e6:.0f} MB more while loading; {load.entry_bytes} bytes a token "
        f"and layer\n\n{table(('', 'time', 'of the floor', 'experts read'), lines)}"
    )


# ---- the checkpoint ----


def config_fields() -> Mapping[str, Any]:
    """Return R1's config.json, cut to two layers."""
    known = {name: value for name, value in configurations()["deepseek-r1"].items() if name != "native"}
    return {"model_type": "deepseek_v3", **known, **CUT, "quantization_config": FP8}


def make_checkpoint(folder: Path) -> None:
    """Write random weights, in shards, and the index last."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_fields()))
    where: dict[str, str] = {}
    for number, tensors in enumerate(_shards(load_config(folder))):
        name = f"model-{number:05}.safetensors"
        save_file(tensors, folder / name)
        where |= dict.fromkeys(tensors, name)
        print(f"{len(where):,} tensors written", flush=True)
    (folder / INDEX).write_text(json.dumps({"weight_map": where}))


def _shards(config: ModelConfig) -> Iterator[dict[str, Tensor]]:
    torch.manual_seed(0)
    shard: dict[str, Tensor] = {}
    for name, shape in config.tensors.items():
        shard |= random_tensor(name, shape)
        if sum(tensor.nbytes for tensor in shard.values()) > SHARD:
            yield shard
            shard = {}
    yield shard


def random_tensor(name: str, shape: Sequence[int]) -> dict[str, Tensor]:
    """Return a tensor as DeepSeek stores it: matrices in fp8 with scales, except tables and the router."""
    if len(shape) == 1:
        return {name: torch.zeros(shape) if name.endswith("bias") else torch.ones(shape).bfloat16()}
    if "embed" in name or "lm_head" in name or name.endswith("mlp.gate.weight"):
        return {name: torch.randn(*shape, dtype=torch.bfloat16) / shape[1] ** 0.5}
    codes = torch.randint(0, LARGEST + 1, tuple(shape), dtype=torch.uint8)
    codes |= torch.randint(0, 2, tuple(shape), dtype=torch.uint8) << 7
    scales = torch.full(blocks(shape), 1 / (SPREAD * shape[1] ** 0.5))
    return {name: codes.view(torch.float8_e4m3fn), f"{name}{SCALES}": scales}


# ---- measurements ----


def measured(folder: Path) -> Iterator[SliceFigure]:
    """Yield what loading takes, then what steps of 1 and of 8 requests take."""
    config = load_config(folder)
    options = Options(
        slots=SLOTS, lanes=SLOTS, prompt_tokens=PROMPT, kv_budget=BUDGET, weights="int4", prefix_store=0, graphs="off"
    )
    chosen = resolve(folder, config, options, available_bytes())
    load_kernels()
    began = time.perf_counter()
    with Peak() as peak, torch.inference_mode():
        weights = load(folder, config, torch.bfloat16, torch.device("cpu"), _tell, "int4")
    taken = time.perf_counter() - began
    engine = assemble(chosen, config, weights, Eager())
    entry = engine.limits.entry_bytes // config.num_layers
    yield SliceFigure("load", seconds=taken, weights_bytes=weights.bytes, peak_bytes=peak.bytes, entry_bytes=entry)
    requests = [_request(engine, seed) for seed in range(SLOTS)]
    for lane, request in enumerate(requests):
        prefill(engine, request, lane)
    machine = Machine(torch.device("cpu"))
    for rows in (1, SLOTS):
        yield _step_figure(engine, config, requests[:rows], machine)


def _tell(done: int, total: int, what: str) -> None:
    print(f"{what}: {done} of {total}", flush=True)


def _request(engine: LocalEngine, seed: int) -> Request:
    tokens = tuple(Random(seed).choices(range(engine.limits.vocab), k=PROMPT))
    return Request(f"{seed}", tokens, SamplingParams(max_tokens=10 * STEPS, ignore_eos=True))


def _step_figure(
    engine: LocalEngine, config: ModelConfig, requests: Sequence[Request], machine: Machine
) -> SliceFigure:
    taken, rows = list[float](), len(requests)
    for _ in range(ROUNDS):
        machine.run()
        taken += _steps(engine, requests)
    with Chosen() as chosen:
        _steps(engine, requests)
    need = _cost(config, rows, chosen.distinct, engine.limits.entry_bytes)
    seconds = median(taken)
    share = need.seconds(machine.ceiling.rates(need.bytes)) / seconds
    return SliceFigure("step", rows, seconds, share, chosen.distinct)


def _steps(engine: LocalEngine, requests: Sequence[Request]) -> list[float]:
    """Return the seconds of each step with these requests."""
    for slot, request in enumerate(requests):
        engine.insert(slot, slot, request)
    taken = step_seconds(engine, STEPS, WARM)
    for slot in range(len(requests)):
        engine.release(slot)
    return taken


def _cost(config: ModelConfig, rows: int, distinct: float, entry_bytes: int) -> Cost:
    """Return a step's least work; of the experts those are read that were chosen."""
    expected = floor.step(config, rows, PROMPT, entry_bytes, "int4")
    stacks = [weight for weight in config.layer_weights(config.num_layers - 1).values() if weight.chosen]
    count, active = stacks[0].matrices, stacks[0].chosen or 0
    each = sum(weight.elements for weight in stacks) / count * floor.bits_of("int4").layers / 8
    return Cost(expected.bytes + (distinct - count * (1 - (1 - active / count) ** rows)) * each, expected.operations)


class Chosen(TorchDispatchMode):
    """Counts the different experts of each routing."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.ringkv.route.default:
            self._counts.append(len(result[0].unique()))
        return result

    @property
    def distinct(self) -> float:
        return fmean(self._counts)


if __name__ == "__main__":
    main()
