"""Statistics of queries: those of transformers' hooks, in whole windows that outlive an interruption."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ringkv.engine.build import build
from ringkv.engine.calibrate import calibrate
from ringkv.engine.engine import LocalEngine
from ringkv.weights.query_statistics import QueryStatistics, partial_path, read
from tests.engine import tiny
from tests.engine.test_golden import GEMMA3, LLAMA3, MODELS, YARN

WINDOWS = [tiny.prompt(100, 1), tiny.prompt(100, 2)]
HEADS, GROUPS, WIDTH = 2, 3, 32
CASES: dict[str, tuple[str, dict[str, Any], str, list[int]]] = {
    "llama": ("Llama", {}, "q_proj", [0, 1, 2]),
    "llama3": ("Llama", {"rope_parameters": LLAMA3}, "q_proj", [0, 1, 2]),
    "yarn": ("Llama", {"rope_parameters": YARN}, "q_proj", [0, 1, 2]),
    "biased": ("Qwen2", {}, "q_proj", [0, 1, 2]),
    "normed": ("Qwen3", {}, "q_norm", [0, 1, 2]),
    "partial-pairs": (*MODELS["glm4"], "q_proj", [0, 1, 2]),
    "some-do-not-rotate": (*MODELS["smollm3"], "q_proj", [0, 1, 2, 3]),
    "some-are-local": ("Gemma3", GEMMA3, "q_norm", [1, 3]),
}


def hooked(model: Any, module: str, layers: list[int]) -> dict[int, Tensor]:
    """Return the queries [windows, tokens, heads, D] of transformers' layers before rotation."""
    found: dict[int, Tensor] = {}

    def note(layer: int, out: Tensor) -> None:
        found[layer] = out.transpose(1, 2) if out.shape[1] == HEADS * GROUPS else out

    for layer in layers:
        block = model.model.layers[layer].self_attn.get_submodule(module)
        block.register_forward_hook(lambda _, inputs, out, layer=layer: note(layer, out.detach()))
    with torch.no_grad():
        model(torch.tensor(WINDOWS))
    return {layer: one.reshape(200, HEADS, GROUPS, WIDTH).double() for layer, one in found.items()}


def lengths(case: str, layer: int, queries: Tensor) -> Tensor:
    """Return the mean lengths of the pairs of queries [N, H, G, D], and of elements that do not rotate."""
    if case == "some-do-not-rotate" and layer == 3:
        return queries.abs().mean(0)
    if case == "partial-pairs":
        some = torch.complex(queries[..., 0:16:2], queries[..., 1:16:2])
        return torch.cat((some.abs(), queries[..., 16:].abs()), -1).mean(0)
    return torch.complex(queries[..., :16], queries[..., 16:]).abs().mean(0)


@pytest.mark.parametrize("case", CASES)
def test_statistics_are_those_of_transformers_queries_before_rotation(case: str, tmp_path: Path) -> None:
    kind, changes, module, layers = CASES[case]
    model, path = tiny.save(tmp_path, kind, **changes), tmp_path / "calibrated.safetensors"
    found = calibrate(build(tiny.config(tmp_path)).lanes, WINDOWS, path, "random")
    assert sorted(found.layers) == layers
    assert found.tokens == 200
    scale = model.model.rotary_emb.attention_scaling if case == "yarn" else 1.0
    assert (scale > 1) == (case == "yarn")
    for layer, queries in hooked(model, module, layers).items():
        means = found.means(layer)
        torch.testing.assert_close(means.queries, scale * queries.mean(0).float(), atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(means.lengths, scale * lengths(case, layer, queries).float(), atol=2e-5, rtol=2e-5)
        assert (means.lengths > means.queries.abs().amin()).all()


@pytest.fixture(scope="module")
def engine(llama_dir: Path) -> LocalEngine:
    return build(tiny.config(llama_dir))


def equal(one: QueryStatistics | None, other: QueryStatistics) -> bool:
    assert one is not None
    same = [torch.equal(*pair) for at in other.layers for pair in zip(one.layers[at], other.layers[at], strict=True)]
    return (one.tokens, one.source) == (other.tokens, other.source) and all(same)


def test_an_interrupted_run_goes_on_with_the_window_that_was_interrupted(
    engine: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = [*WINDOWS, tiny.prompt(100, 3)]
    whole = calibrate(engine.lanes, windows, tmp_path / "whole.safetensors", "three")
    path, prompt_queries, ran = tmp_path / "new" / "calibrated.safetensors", engine.lanes.prompt_queries, []
    earlier = calibrate(engine.lanes, WINDOWS[:1], path, "one")

    def interrupted(tokens: list[int]) -> Iterator[Any]:
        for number, piece in enumerate(prompt_queries(tokens)):
            if tokens is windows[1] and number == 3 and windows[1] not in ran:
                ran.append(tokens)
                raise KeyboardInterrupt
            yield piece
        ran.append(tokens)

    monkeypatch.setattr(engine.lanes, "prompt_queries", interrupted)
    with pytest.raises(KeyboardInterrupt):
        calibrate(engine.lanes, windows, path, "three")
    assert equal(read(path), earlier)
    assert (read(partial_path(path)) or earlier).tokens == 100
    ran[:] = [windows[1]]
    told: list[tuple[int, int]] = []
    found = calibrate(engine.lanes, windows, path, "three", lambda done, total, _: told.append((done, total)))
    assert ran[1:] == windows[1:]
    assert (told[0], told[-1]) == ((100, 300), (300, 300))
    assert equal(found, whole)
    assert equal(read(path), whole)
    assert not partial_path(path).exists()


def test_a_run_with_another_source_begins_again(engine: LocalEngine, tmp_path: Path) -> None:
    path = tmp_path / "calibrated.safetensors"
    first = calibrate(engine.lanes, WINDOWS[:1], path, "one")
    path.rename(partial_path(path))
    second = calibrate(engine.lanes, WINDOWS[1:], path, "two")
    assert second.tokens == 100
    assert not torch.equal(first.means(0).queries, second.means(0).queries)


def test_queries_do_not_depend_on_the_pieces_of_a_window(engine: LocalEngine, llama_dir: Path, tmp_path: Path) -> None:
    other = build(tiny.config(llama_dir, chunk=64, kv=tiny.choice("snapstream", tiny.SnapKV(window=64))))
    one, two = (calibrate(each.lanes, WINDOWS, tmp_path / "some", "random") for each in (engine, other))
    for layer in range(3):
        torch.testing.assert_close(one.means(layer), two.means(layer), atol=1e-5, rtol=1e-5)
