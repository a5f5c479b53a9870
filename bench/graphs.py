"""graphs: one layer's graph replayed for every layer, one graph of the whole model, and eager calls.

    python -m bench.graphs                          SmolLM2, 8 slots of 1,792 entries

All three use the same engine, weights and caches, and alternate. The benchmark prints the time to build and to step.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from bench.results import keep, table
from ringkv.engine import functions
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.graphs.aot import AheadOfTime
from ringkv.graphs.graph import Backend, Eager, TensorFunction
from ringkv.machine.compiler import find_compiler
from ringkv.models.config import load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate

Step = Callable[[], Tensor]
TURN = 8


@torch.inference_mode()
def main() -> None:
    args = _arguments()
    folder = locate(args.model)
    options = Options(slots=args.slots, kv_budget=args.budget, prompt_tokens=2048, graphs="off")
    engine = build(resolve(folder, load_config(folder), options, available_bytes()))
    compiler = find_compiler()
    assert compiler is not None, "this benchmark compares compiled graphs and needs a C++ compiler"
    with tempfile.TemporaryDirectory() as folder_of_graphs:
        backends: dict[str, tuple[Backend, Callable[[Backend, LocalEngine], Step]]] = {
            "plain calls": (Eager(), _by_layer),
            "one layer's graph, replayed": (
                AheadOfTime(Path(folder_of_graphs) / "layer", compiler.path, print),
                _by_layer,
            ),
            "one whole graph": (AheadOfTime(Path(folder_of_graphs) / "whole", compiler.path, print), _whole),
        }
        steps, built = {}, {}
        for name, (backend, make) in backends.items():
            started = time.perf_counter()
            steps[name] = make(backend, engine)
            built[name] = time.perf_counter() - started
        laps = _alternate(steps, args.rounds)
    rows = [(name, f"{built[name]:.1f} s", f"{median(laps[name]) * 1e3:.1f} ms") for name in steps]
    figures = [{"way": name, "build_s": built[name], "step_s": median(laps[name])} for name in steps]
    keep("graphs", vars(args), figures, table(("decode step as", "built in", "step"), rows))


def _inputs(engine: LocalEngine) -> list[Tensor]:
    """Return x, cosine, sine, slot, entry and live: every slot is full and writes its last entry."""
    slots, capacity = engine.limits.slots, engine.limits.capacity
    decoder = engine.batch.decoder
    x = decoder.embed(torch.arange(slots), engine.batch.weights.shared)
    live = torch.full((slots,), capacity, dtype=torch.int32)
    slot = torch.arange(slots, dtype=torch.int32)
    rotation = decoder.rotation(decoder.kinds[0], torch.full((slots,), capacity))
    return [x, *rotation, slot, live - 1, live]


def _by_layer(backend: Backend, engine: LocalEngine) -> Step:
    x, *same = _inputs(engine)
    names = tuple(engine.batch.weights.layers[0])
    layer = backend.make(
        "layer", functions.decode_layer(engine.batch.decoder, names), [x, *same, *engine.batch.layers[0]]
    )
    shared = engine.batch.weights.shared
    head = backend.make("head", functions.head(engine.batch.decoder, tuple(shared)), [x, *shared.values()])

    def step() -> Tensor:
        y = x
        for tensors in engine.batch.layers:
            (y,) = layer([y, *same, *tensors])
        return head([y, *shared.values()])[0]

    return step


def _whole(backend: Backend, engine: LocalEngine) -> Step:
    shared = engine.batch.weights.shared
    function = _all_layers(engine, tuple(engine.batch.weights.layers[0]), tuple(shared))
    tensors = [tensor for layer in engine.batch.layers for tensor in layer]
    arguments = [*_inputs(engine), *shared.values(), *tensors]
    graph = backend.make("whole", function, arguments)
    return lambda: graph(arguments)[0]


def _all_layers(engine: LocalEngine, names: tuple[str, ...], shared: tuple[str, ...]) -> TensorFunction:
    layer = functions.decode_layer(engine.batch.decoder, names)
    head = functions.head(engine.batch.decoder, shared)
    each = 2 + len(names)

    def function(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        same, shared_tensors, tensors = rest[:5], rest[5 : 5 + len(shared)], rest[5 + len(shared) :]
        for start in range(0, len(tensors), each):
            (x,) = layer(x, *same, *tensors[start : start + each])
        return head(x, *shared_tensors)

    return function


def _alternate(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    laps: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            for _ in range(TURN):
                started = time.perf_counter()
                step()
                laps[name].append(time.perf_counter() - started)
    return laps


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--budget", type=int, default=1792)
    parser.add_argument("--rounds", type=int, default=6)
    return parser.parse_args()


if __name__ == "__main__":
    main()
