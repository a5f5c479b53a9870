"""Pages that are fetched one layer ahead: the prediction against transformers, the bits, and what is counted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from ringkv.base.engine import PrefillChunk
from ringkv.base.errors import InvalidRequest
from ringkv.cache.formats import pages
from ringkv.cache.pages_body import PagesBody
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.kernels import decode_attend
from ringkv.models.config import load_config
from ringkv.plan.complete import complete
from ringkv.plan.options import Options
from tests.engine import tiny
from tests.engine.test_golden import GEMMA3N
from tests.engine.test_pages import CAPACITY, KV, PAGE, decoded, ended
from tests.engine.test_recall import REFERENCES, RESIDENT
from tests.engine.test_shared import saved
from tests.kernels.test_read_ahead import drop

PAGED: dict[str, Any] = {"kv": KV, "capacity": CAPACITY, "kv_page": PAGE}
LAYERS = 3


def predictions(model: torch.nn.Module, tokens: list[int]) -> list[Tensor]:
    """Return for each layer but the first its queries [1, H, D] of what enters the layer before, for the last token."""
    inner = model.model
    states = inner(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    found = []
    for state, layer in zip(states, inner.layers[1:], strict=False):
        attention = layer.self_attn
        q = attention.q_proj(layer.input_layernorm(state[:, -1:])).unflatten(-1, (-1, attention.head_dim))
        q = attention.q_norm(q) if hasattr(attention, "q_norm") else q
        by = inner.rotary_emb(state, torch.tensor([[len(tokens) - 1]]))
        found.append(apply_rotary_pos_emb(q.transpose(1, 2), q.transpose(1, 2), *by)[0][0, :, 0])
    return found


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3"])
@torch.inference_mode()
def test_the_prediction_is_a_layers_queries_of_what_enters_the_layer_before(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.save(tmp_path, kind)
    (tmp_path / "tier").mkdir()
    engine = build(tiny.config(tmp_path, **PAGED, kv_tier=tmp_path / "tier", kv_prefetch=True))
    predicted: list[Tensor] = []
    fetch = pages.prefetch_pages

    def spy(q: Tensor, *others: Any) -> Tensor:
        predicted.append(q[0].flatten(0, 1))
        return fetch(q, *others)

    monkeypatch.setattr(pages, "prefetch_pages", spy)
    tiny.enter(engine, tiny.request(tiny.prompt(100), kv=replace(KV, budget=None)))
    tiny.decode(engine, 1, forced=[9])
    want = predictions(model, [*tiny.prompt(100), 9])
    assert len(predicted) == len(want) == LAYERS - 1
    for one, other in zip(predicted, want, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def filed(llama_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    return build(tiny.config(llama_dir, **PAGED, kv_tier=tmp_path_factory.mktemp("tier"), kv_prefetch=True))


@pytest.mark.parametrize("graphs", ["off", "compiled"])
def test_steps_that_prefetch_have_the_bits_of_steps_without(llama_dir: Path, tmp_path: Path, graphs: str) -> None:
    want, found = (
        decoded(
            build(tiny.config(llama_dir, **PAGED, dtype="bfloat16", kv_tier=tmp_path, graphs=graphs, kv_prefetch=one)),
            KV,
        )
        for one in (False, True)
    )
    assert torch.equal(found, want)


def test_prefetched_pages_and_hits_are_counted_for_each_request(
    filed: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pages are dropped from memory before the first step, and nothing reads them but prefetching and steps."""
    (body,) = filed.batch.bodies
    assert isinstance(body, PagesBody)
    forward, counts = filed.batch.forward, list[Tensor]()

    def after_a_drop(drafts: Any) -> None:
        if not counts:
            drop(list(body.planes))
        forward(drafts)
        assert body.fetched is not None
        counts.append(body.fetched[:, 0].clone())

    monkeypatch.setattr(filed.batch, "forward", after_a_drop)
    usage = ended(filed, tiny.request(tiny.prompt(200), max_tokens=4, ignore_eos=True)).usage.kv
    assert usage.pages is not None
    first, last = counts[0], counts[-1].flatten(0, 1).float().mean(0)
    assert not first[0, :, 1:].any()  # nothing is prefetched for the first layer
    assert (first[1:, :, 1] > 0).all()
    assert (first[1:, :, 2] <= first[1:, :, 1]).all()
    assert [usage.pages.recalled, usage.pages.prefetched, usage.pages.prefetch_hits] == last.round().int().tolist()
    assert usage.pages.recalled > 0
    assert usage.pages.prefetched > usage.pages.recalled


def test_rows_that_ride_in_a_pass_with_prompts_are_prefetched(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Llama", vocab_size=224)  # whose head can be packed
    filed = build(tiny.config(tmp_path, **PAGED, dtype="bfloat16", kv_tier=tmp_path, kv_prefetch=True))
    assert filed.limits.rides
    tiny.enter(filed, tiny.request(tiny.prompt(200), kv=KV), slot=1)
    (body,) = filed.batch.bodies
    drop(list(body.planes))
    filed.sample().read()
    other = tiny.request(tiny.prompt(40, 3), "other")
    filed.begin(other, 0)
    filed.prefill([PrefillChunk(other, 0, 0, 16)], feed=True)
    fetched = filed.fetched(1)
    assert fetched is not None
    assert fetched.prefetched > 0


def test_pages_of_a_host_are_prefetched_to_places_on_the_device(
    llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU: the host's memory is the same memory, and the references run."""
    monkeypatch.setattr(decode_attend, "operator", lambda name, q: REFERENCES[name])
    config = tiny.config(llama_dir, **PAGED, kv_resident=RESIDENT)
    without, ahead = build(config), build(replace(config, kv_prefetch=True))
    assert torch.equal(decoded(ahead, KV), decoded(without, KV))
    alone, found = without.fetched(0), ahead.fetched(0)
    assert alone is not None
    assert found is not None
    assert alone[1:] == (0, 0)
    assert 0 < found.prefetch_hits <= found.prefetched
    assert found.recalled < alone.recalled


def test_layers_that_share_a_cache_are_not_prefetched(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("whole", "pairs", "tier")]
    for folder in folders:
        folder.mkdir()
    tiny.save(folders[0], "Llama", num_hidden_layers=5)
    engine = build(tiny.config(saved(*folders[:2], factor=2), **PAGED, kv_tier=folders[2], kv_prefetch=True))
    assert engine.model.kv_source == (0, 0, 2, 2, 4)
    assert engine.batch.prefetch is not None
    assert engine.batch.prefetch.layers == [2, 4]


def test_a_model_whose_layers_have_inputs_of_their_own_is_refused(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Gemma3n", **GEMMA3N)
    options = Options(kv_policy="arkvale", kv_tier=str(tmp_path), kv_prefetch=True)
    with pytest.raises(InvalidRequest, match="kv_prefetch is not implemented for layers with inputs of their own"):
        complete(tmp_path, load_config(tmp_path), options)
    with pytest.raises(InvalidRequest, match="kv_prefetch is not implemented for layers with inputs of their own"):
        build(tiny.config(tmp_path, **PAGED, kv_tier=tmp_path, kv_prefetch=True))
