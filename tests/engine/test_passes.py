"""Passes with pieces of several prompts and with slots, against passes of one prompt and decode steps: bit by bit."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ringkv.base.cache_spec import PlaneFormat, SlotFormat
from ringkv.base.engine import PrefillChunk, chunks
from ringkv.base.kv import KVChoice
from ringkv.base.request import Request
from ringkv.base.selectors import SnapKV
from ringkv.engine import build as build_module
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.graphs.aot import AheadOfTime
from ringkv.graphs.graph import Eager, Graph, StaticFunction
from ringkv.kernels.library import is_native
from ringkv.machine.compiler import find_compiler, missing_for_graphs
from tests.engine import tiny

pytestmark = pytest.mark.skipif(missing_for_graphs() is not None, reason=str(missing_for_graphs()))

VOCAB, LANES, ROOM = 224, 4, 640
LENGTHS = (300, 33, 5, 97)  # of prompts; longer ones are compressed to 64 entries

QUANTISED_ROWS = {
    f"w{bits}a{of_rows}": {"weights": f"int{bits}", "activations": f"int{of_rows}"}
    for bits, of_rows in ((8, 8), (4, 8), (4, 4))
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    tiny.save(folder, "Llama", vocab_size=VOCAB, max_position_embeddings=1024)
    return folder


def engine(folder: Path, graphs: str = "off", weights: str = "bf16", **changes: object) -> LocalEngine:
    """weights: w8a8, w4a8 and w4a4 are int8 and int4 with int8 and int4 activations."""
    usual = {"slots": 12, "lanes": LANES, "staged_tokens": LANES * ROOM, "prompt_tokens": ROOM, "chunk": 128}
    kv = KVChoice(budget=64, sinks=4, recent=16, select=SnapKV(window=8))
    stored = QUANTISED_ROWS.get(weights, {"weights": weights})
    made = build(tiny.config(folder, dtype="bfloat16", graphs=graphs, kv=kv, **stored, **usual | changes))
    assert is_native("linear")
    return made


def prompt(length: int, seed: int = 0) -> Request:
    tokens = torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(length + seed)).tolist()
    return tiny.request(tokens, name=f"{length}-{seed}")


def staged(made: LocalEngine, lane: int, first: int, length: int) -> list[Tensor]:
    """Everything that a lane holds of its prompt: entries, last queries and logits."""
    planes = [plane[:, 0, :, first : first + length].clone() for plane in made.lanes.staging.bodies[0].planes]
    return [*planes, made.lanes.staging.queries[0][:, lane].clone(), made.lanes.logits(lane).clone()]


@torch.inference_mode()
def clear(made: LocalEngine) -> None:
    """Forget the queries of earlier prompts: a short prompt does not fill its window."""
    for plane in made.lanes.staging.queries:
        plane.zero_()


def alone(made: LocalEngine, length: int) -> list[Tensor]:
    clear(made)
    tiny.stage(made, prompt(length))
    return staged(made, 0, 0, length)


def equal(found: list[Tensor], want: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, want, strict=True))


@pytest.mark.parametrize(
    ("graphs", "weights"),
    [
        ("off", "bf16"),
        pytest.param("compiled", "bf16", marks=pytest.mark.slow),
        ("off", "int8"),
        ("off", "int4"),
        ("off", "w8a8"),
        ("off", "w4a8"),
        ("off", "w4a4"),
    ],
)
def test_prompts_that_share_passes_are_staged_as_each_alone(folder: Path, graphs: str, weights: str) -> None:
    made = engine(folder, graphs, weights)
    assert made.limits.packs
    want = [alone(made, length) for length in LENGTHS]
    clear(made)
    firsts = [7, 700, 1300, 900]  # entries of the lanes, in another order than their numbers
    requests = [prompt(length) for length in LENGTHS]
    for lane, (request, first) in enumerate(zip(requests, firsts, strict=True)):
        assert made.begin(request, lane, range(first, first + len(request.tokens))).tokens == 0
    at = [0] * len(LENGTHS)
    for units in ((1, 2, 1, 2), (4, 0, 0, 1), (2, 0, 0, 1), (9, 0, 0, 0)):
        stops = [min(start + n * made.limits.unit, length) for start, n, length in zip(at, units, LENGTHS, strict=True)]
        pieces = enumerate(zip(requests, at, stops, strict=True))
        made.prefill([PrefillChunk(one, lane, start, stop) for lane, (one, start, stop) in pieces if start < stop])
        at = stops
    assert at == [*LENGTHS]
    found = [
        staged(made, lane, first, length) for lane, (first, length) in enumerate(zip(firsts, LENGTHS, strict=True))
    ]
    assert all(map(equal, found, want))


@pytest.mark.parametrize(
    ("graphs", "weights", "kv_format", "skip"),
    [
        ("off", "bf16", "plain", 0),
        pytest.param("compiled", "bf16", "plain", 0, marks=pytest.mark.slow),
        ("off", "bf16", "int8", 0),
        pytest.param("compiled", "bf16", "int8", 0, marks=pytest.mark.slow),
        ("off", "bf16", "int4", 1),  # layers of one kind with slots in two formats
        ("off", "bf16", "zipcache", 1),
        ("off", "w8a8", "plain", 0),
        pytest.param("compiled", "w4a8", "plain", 0, marks=pytest.mark.slow),
    ],
)
def test_slots_that_ride_get_the_logits_of_a_decode_step(
    folder: Path, graphs: str, weights: str, kv_format: PlaneFormat, skip: int
) -> None:
    made = engine(folder, graphs, weights, slot_format=SlotFormat(kv_format, skip=skip))
    assert made.limits.rides
    late = prompt(97)
    want_staged = alone(made, 97)

    def after(ride: bool) -> list[Tensor]:
        for slot, length in ((1, 300), (5, 33), (11, 5)):
            tiny.enter(made, prompt(length), slot)
        logits = []
        for work in chunks(late, 2, made.begin(late, 2).tokens, made.limits.unit):
            made.sample().read()
            if ride:
                made.prefill([work], feed=True)
            else:
                made.forward()
                made.prefill([work])
            logits.append(made.batch.logits[[1, 5, 11]].clone())
        assert equal(staged(made, 2, 2 * ROOM, 97), want_staged)
        for slot in (1, 5, 11):
            made.release(slot)
        return logits

    clear(made)
    assert equal(after(ride=True), after(ride=False))


@pytest.mark.parametrize(
    ("graphs", "weights"),
    [
        ("off", "bf16"),
        pytest.param("compiled", "bf16", marks=pytest.mark.slow),
        ("off", "int4"),
        ("off", "w8a8"),
        ("off", "w4a8"),
        ("off", "w4a4"),
    ],
)
def test_a_slots_logits_are_the_same_beside_any_number_of_others(folder: Path, graphs: str, weights: str) -> None:
    made = engine(folder, graphs, weights)
    logits = []
    for others in (0, 1, 7, 11):
        tiny.enter(made, prompt(97), slot=0)
        for slot in range(1, 1 + others):
            tiny.enter(made, prompt(33, seed=slot), slot)
        logits.append(tiny.decode(made, 5)[1])
        for slot in range(1 + others):
            made.release(slot)
    assert all(torch.equal(logits[0], one) for one in logits)


class Keys(Eager):
    """Collects the folder names of the graphs that an engine would compile ahead of time."""

    def __init__(self) -> None:
        compiler = find_compiler()
        assert compiler is not None
        self.ahead = AheadOfTime(Path(), compiler.path, "source", lambda name: None)
        self.names: set[str] = set()

    def make(self, name: str, function: StaticFunction, example: Sequence[Tensor]) -> Graph:
        self.names.add(self.ahead._path(name, function, example).name)
        return super().make(name, function, example)


def test_an_engine_with_one_slot_uses_the_graphs_of_one_with_many(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many, few = Keys(), Keys()
    for keys, sizes in ((many, {}), (few, {"slots": 1, "lanes": 1, "staged_tokens": 0})):
        monkeypatch.setattr(build_module, "_backend", lambda *_, keys=keys: keys)
        engine(folder, "compiled", **sizes)
    assert few.names <= many.names
    assert few.names


@pytest.mark.slow  # it compiles the graphs of a step with one slot, unless another slow test has
def test_one_slot_gets_the_logits_of_plain_calls_from_graphs(folder: Path) -> None:
    few, plain = engine(folder, "compiled", slots=1, lanes=1, staged_tokens=0), engine(folder)
    for made in (few, plain):
        tiny.enter(made, prompt(97))
    assert torch.equal(tiny.decode(few, 5)[1], tiny.decode(plain, 5)[1])


def test_few_rows_of_four_bits_never_ride_because_they_round_differently(folder: Path) -> None:
    assert not engine(folder, weights="int4", slots=8).limits.rides
    assert engine(folder, weights="int4", slots=9).limits.rides
