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
from ringkv.engine.source import digest
from ringkv.graphs.aot import AheadOfTime
from ringkv.graphs.graph import Backend, Eager, StaticFunction
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

        def ahead_of_time(name: str) -> AheadOfTime:
            return AheadOfTime(Path(folder_of_graphs) / name, compiler.path, digest(), print)

        backends: dict[str, tuple[Backend, Callable[[Backend, LocalEngine], Step]]] = {
            "plain calls": (Eager(), _by_layer),
            "one layer's graph, replayed": (ahead_of_time("layer"), _by_layer),
            "one whole graph": (ahead_of_time("whole"), _whole),
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
    x = decoder.embed(torch.arange(slots), engine.batch.weights.shared).x
    live = torch.full((slots,), capacity, dtype=torch.int32)
    slot = torch.arange(slots, dtype=torch.int32)
    rotation = decoder.rotation(decoder.kinds[0], torch.full((slots,), capacity))
    return [x, *rotation, slot, live - 1, live]


def _by_layer(backend: Backend, engine: LocalEngine) -> Step:
    x, *same = _inputs(engine)
    layer = backend.make("layer", _one_layer(engine), [x, *same, *engine.batch.layers[0]])
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
    tensors = [tensor for layer in engine.batch.layers for tensor in layer]
    arguments = [*_inputs(engine), *shared.values(), *tensors]
    graph = backend.make("whole", _all_layers(engine), arguments)
    return lambda: graph(arguments)[0]


def _one_layer(engine: LocalEngine) -> StaticFunction:
    decoder, layers = engine.batch.decoder, engine.batch.weights.layers
    return functions.decode_layer(decoder, decoder.kinds[0], tuple(layers[0]), "plain")


def _all_layers(engine: LocalEngine) -> StaticFunction:
    names = tuple(engine.batch.weights.shared)
    layer, head = _one_layer(engine).body, functions.head(engine.batch.decoder, names).body
    each = len(engine.batch.layers[0])

    def body(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        same, shared, tensors = rest[:5], rest[5 : 5 + len(names)], rest[5 + len(names) :]
        for start in range(0, len(tensors), each):
            (x,) = layer(x, *same, *tensors[start : start + each])
        return head(x, *shared)

    return StaticFunction(body, "all layers")


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
