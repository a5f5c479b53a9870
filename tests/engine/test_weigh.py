"""Votes weighed by values in an engine: o_proj is the checkpoint's, or what a quantised engine multiplies with."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ringkv.base.errors import InvalidRequest
from ringkv.base.events import Token
from ringkv.base.kv import HeadBudgets, Layout
from ringkv.base.selectors import TOVA, ExpectedAttention, KeyDiff, KVzip, Selector, SnapKV
from ringkv.cache.compress.select import VOTES
from ringkv.cache.layouts import layout
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.scheduler.loop import Loop
from tests.cache.compress.test_critical import by_hand
from tests.engine import tiny
from tests.engine.test_golden import LATENT

LAYERS, HEADS, GROUPS, WIDTH = 3, 2, 3, 32
KV = tiny.choice("snapstream", budget=40, recent=8, weigh="values")
SELECTORS: list[Selector] = [SnapKV(window=8), TOVA(), KeyDiff(), KVzip()]


def asked(select: Selector = SELECTORS[0], n: int = 150, **changes: Any) -> Any:
    return tiny.request(tiny.prompt(n, n), kv=replace(KV, select=select, **changes))


def norms(engine: LocalEngine, folder: Path, low: int, high: int) -> Tensor:
    """[L, H, n] of the lane's values, by o_proj of the checkpoint."""
    values = engine.lanes.view(0, 0, 1).values[:, :, low:high].float()
    found = torch.zeros(values.shape[:3])
    for layer in range(LAYERS):
        matrix = load_file(folder / "model.safetensors")[f"model.layers.{layer}.self_attn.o_proj.weight"].float()
        for head in range(HEADS * GROUPS):
            own = matrix[:, head * WIDTH : (head + 1) * WIDTH]
            found[layer, head // GROUPS] += (values[layer, head // GROUPS] @ own.T).abs().sum(-1) / GROUPS
    return found


@pytest.mark.parametrize("select", SELECTORS, ids=lambda one: one.name)
@torch.inference_mode()
def test_a_selector_keeps_what_its_votes_and_the_checkpoints_output_projection_say(
    llama_dir: Path, select: Selector
) -> None:
    engine, one = build(tiny.config(llama_dir)), asked(select)
    engine.admit(one)
    kept = tiny.kept(engine, one)
    plan: Layout = layout(one.kv, 150, 64)
    low, high = plan.sinks, plan.prompt - plan.recent
    prompt = engine.lanes.view(0, 0, select.queries)
    votes = VOTES[type(select)](prompt, low, high, select).view(LAYERS, HEADS, -1)
    weights = norms(engine, llama_dir, low, high)
    if select.joins_heads:
        weights = weights.mean(1, keepdim=True).expand_as(weights)
    for layer in range(LAYERS):
        for head in range(HEADS):
            want = by_hand(votes[layer, head].tolist(), weights[layer, head].tolist(), plan.selected)
            assert set(kept[layer, head, low : low + plan.selected].tolist()) == {low + j for j in want}
    plain = tiny.kept(engine, asked(select, weigh="none"))
    assert (plain != kept).any()


@pytest.mark.parametrize("heads", ["adaptive", "global"])
def test_weighed_votes_select_within_heads_and_the_division_stays(llama_dir: Path, heads: HeadBudgets) -> None:
    engine = build(tiny.config(llama_dir, kv=replace(KV, heads="adaptive")))
    weighed, plain = (tiny.kept(engine, asked(heads=heads, weigh=weigh)) for weigh in ("values", "none"))
    np.testing.assert_array_equal((weighed >= 0).sum(-1), (plain >= 0).sum(-1))
    assert (weighed != plain).any()


@pytest.mark.parametrize(("weights", "activations"), [("int8", "16-bit"), ("int4", "16-bit"), ("int4", "int8")])
def test_packed_weights_weigh_nearly_as_plain_ones(llama_dir: Path, weights: str, activations: str) -> None:
    stored: dict[str, Any] = {"weights": weights, "activations": activations}
    engine = build(tiny.config(llama_dir, dtype="bfloat16", **stored))
    tiny.stage(engine, asked())
    found = torch.stack([engine.lanes.view(0, 0, 1).output(layer) for layer in range(LAYERS)]).float()  # type: ignore[misc]
    tensors = load_file(llama_dir / "model.safetensors")
    for layer in range(LAYERS):
        matrix = tensors[f"model.layers.{layer}.self_attn.o_proj.weight"].float()
        off = (found[layer].flatten(0, 2) - matrix.T).norm() / matrix.norm()
        assert 0 < off < {"int8": 0.02, "int4": 0.1}[weights]


def test_chunked_and_one_shot_prefill_keep_the_same_alone_and_beside_others(llama_dir: Path) -> None:
    want = tiny.kept(build(tiny.config(llama_dir, chunk=256)), asked())
    engine = build(tiny.config(llama_dir))
    np.testing.assert_array_equal(tiny.kept(engine, asked()), want)
    one = tiny.request(tiny.prompt(150, 150), kv=KV, max_tokens=12)
    alone = tiny.serve(engine, one)["r"]
    loop = Loop(engine)
    events = [*loop.submit(replace(one, id="other", tokens=one.tokens[:90])), *loop.submit(one)]
    while not loop.idle:
        events += loop.step()
    tokens = [one.token for one in events if isinstance(one, Token) and one.request_id == "r"]
    assert tokens == alone


def test_what_values_cannot_weigh_is_refused_by_name(llama_dir: Path, tmp_path: Path) -> None:
    engine = build(tiny.config(llama_dir))
    with pytest.raises(InvalidRequest, match="kv_weigh values is not possible with kv_select expected") as refused:
        engine.admit(asked(ExpectedAttention(window=8)))
    assert refused.value.param == "kv_weigh"
    tiny.save(tmp_path, "DeepseekV3", **LATENT)
    with pytest.raises(InvalidRequest, match="kv_weigh values is not implemented with latent caches"):
        build(tiny.config(tmp_path, kv=KV))
