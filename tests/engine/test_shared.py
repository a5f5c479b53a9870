"""Cross-layer attention: layers that read an earlier layer's cache, against transformers' Llama with those keys."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ringkv.base.cache_spec import PlaneFormat, SlotFormat
from ringkv.base.errors import InvalidRequest
from ringkv.base.selectors import TOVA, KeyDiff, KVzip, Selector, SnapKV
from ringkv.cache.compress.snapkv import votes
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.models.decoder import Decoder
from tests.engine import kept, tiny
from tests.engine.reference import use_reference
from tests.engine.test_engine import prompt
from tests.engine.test_golden import FULL, GEMMA4

LAYERS = 5
KV = tiny.choice("snapstream", budget=40, recent=8)
NEAR = {"int8": 0.01, "int4": 0.1}  # error of logits over their spread
SELECTORS = (SnapKV(window=8), TOVA(), KeyDiff(), KVzip())


HUNYUANS: dict[str, dict[str, Any]] = {
    "HunYuanDenseV1": {},
    "HunYuanMoEV1": {"num_experts": 4, "moe_topk": 2, "intermediate_size": 64},
}


def saved(whole: Path, folder: Path, factor: int) -> Path:
    """Copy a checkpoint without the keys and values of layers that share, and with the factor in config.json."""
    config = json.loads((whole / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"use_cla": True, "cla_share_factor": factor}))
    own = tuple(f"layers.{layer}." for layer in range(0, LAYERS, factor))
    tensors = load_file(whole / "model.safetensors")
    needed = {n: t for n, t in tensors.items() if ("k_proj" not in n and "v_proj" not in n) or any(o in n for o in own)}
    save_file(needed, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.save(folder, "Llama", num_hidden_layers=LAYERS)
    return folder


@pytest.fixture
def pairs(whole: Path, tmp_path: Path) -> Path:
    """CLA2: the last layer is alone."""
    return saved(whole, tmp_path, 2)


@pytest.mark.parametrize("factor", [1, 2, 3, 5])
def test_layers_attend_to_the_first_ones_keys_in_prefill_decode_and_over_compressed_caches(
    factor: int, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, tokens = saved(whole, tmp_path, factor), torch.randint(3, 199, (130,)).tolist()
    source = [layer // factor * factor for layer in range(LAYERS)]
    full, compressed = build(tiny.config(folder, capacity=160, kv=FULL)), build(tiny.config(folder))
    for engine in (full, compressed):
        asked = tiny.request(tokens[:100])
        tiny.enter(engine, asked)
        seen = kept.visible(engine, 100, len(tokens))
        want = kept.logits(kept.model(whole, "Llama", seen, monkeypatch, source), tokens)
        torch.testing.assert_close(engine.lanes.logits(0), want[99], atol=1e-4, rtol=1e-4)
        _, logits = tiny.decode(engine, 30, forced=tokens[100:])
        torch.testing.assert_close(logits, want[99:129], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", HUNYUANS)
def test_layers_of_hunyuan_that_share_keys_have_a_weight_of_their_own_for_them(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Hunyuan-Large, whose layers share rotated keys before the norm."""
    whole, folder = tmp_path / "whole", tmp_path / "shared"
    folder.mkdir()
    tiny.save(whole, kind, num_hidden_layers=LAYERS, **HUNYUANS[kind])
    engine, tokens = build(tiny.config(saved(whole, folder, 2))), torch.randint(3, 199, (130,)).tolist()
    tiny.enter(engine, tiny.request(tokens[:100]))
    assert [body.group.layers for body in engine.batch.bodies] == [(0, 2, 4)]
    seen = kept.visible(engine, 100, len(tokens))
    want = kept.logits(kept.model(whole, kind, seen, monkeypatch, (0, 0, 2, 2, 4)), tokens)
    torch.testing.assert_close(engine.lanes.logits(0), want[99], atol=1e-4, rtol=1e-4)
    _, logits = tiny.decode(engine, 30, forced=tokens[100:])
    torch.testing.assert_close(logits, want[99:129], atol=1e-4, rtol=1e-4)


def test_chunks_whose_queries_nobody_reads_end_with_the_last_layer_that_writes(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, ran = build(tiny.config(saved(whole, tmp_path, 5))), list[str]()
    layer = Decoder.layer

    def counted(self: Decoder, kind: str, *others: Any) -> torch.Tensor:
        ran.append(kind)
        return layer(self, kind, *others)

    monkeypatch.setattr(Decoder, "layer", counted)
    tiny.stage(engine, tiny.request(prompt(70)))  # chunks of 16, of which the last two have the window's 8 queries
    assert len(ran) == 3 * 1 + 2 * LAYERS
    ran.clear()
    tiny.stage(engine, tiny.request(prompt(70), prompt_logprobs=0))
    assert len(ran) == 5 * LAYERS


def test_layers_of_gemma4_that_share_have_no_cache_and_run_for_the_last_chunk_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of six layers in turn local and global, the last three read the caches of layers 1 and 2."""
    tiny.save(tmp_path, "Gemma4", **GEMMA4)
    engine, ran = build(tiny.config(tmp_path)), list[str]()
    bodies = [(body.group.layers, body.entries, body.entry_bytes) for body in engine.batch.bodies]
    assert bodies == [((1,), 64, 2 * 2 * 64 * 4), ((0, 2), 16, 2 * 2 * 2 * 32 * 4)]
    assert engine.model.kv_source == (0, 1, 2, 1, 2, 1)
    layer = Decoder.layer

    def counted(self: Decoder, kind: str, *others: Any) -> torch.Tensor:
        ran.append(kind)
        return layer(self, kind, *others)

    monkeypatch.setattr(Decoder, "layer", counted)
    tiny.stage(engine, tiny.request(prompt(76)))  # chunks of 16, of which the last has the window's 8 queries
    assert ran == ["local", "global", "local"] * 5 + ["global-shared", "local-shared", "global-shared"]


def test_caches_are_as_many_as_the_layers_that_write(pairs: Path) -> None:
    """2 Hkv d bytes ceil(L / f) a token (arXiv 2405.12981, section 3)."""
    engine = build(tiny.config(pairs, dtype="bfloat16"))
    assert engine.limits.entry_bytes == 2 * 2 * 32 * 2 * 3
    assert [len(body.group.layers) for body in engine.batch.bodies] == [3]


def test_votes_are_those_of_all_layers_that_read_a_cache(pairs: Path) -> None:
    engine = build(tiny.config(pairs))
    tiny.stage(engine, tiny.request(prompt(150)))
    view = engine.lanes.view(0, 0, 8)
    assert [q.shape[1] for q in view.q] == [6, 6, 3]  # 3 query heads per key-value head and layer
    both = next(votes(view, 4, 130, SnapKV(window=8, kernel=1)))
    each = [
        next(votes(view._replace(q=[view.q[0][:, heads]], keys=view.keys[:1]), 4, 130, SnapKV(window=8, kernel=1)))
        for heads in (slice(3), slice(3, 6))
    ]
    torch.testing.assert_close(both, (each[0] + each[1]) / 2)


@pytest.mark.parametrize("select", SELECTORS, ids=lambda select: type(select).__name__)
def test_layers_that_share_a_cache_have_one_selection(select: Selector, pairs: Path) -> None:
    chosen = tiny.kept(build(tiny.config(pairs)), tiny.request(prompt(150), kv=tiny.choice("snapstream", select)))
    assert chosen.shape == (LAYERS, 2, 64)
    assert (chosen[0] == chosen[1]).all()
    assert (chosen[2] == chosen[3]).all()


def test_drafts_need_a_cache_for_each_layer(pairs: Path) -> None:
    with pytest.raises(InvalidRequest, match="share") as refused:
        build(tiny.config(pairs, dtype="bfloat16", speculate=2))
    assert refused.value.param == "speculate"


@pytest.mark.parametrize(("name", "skip"), [("int8", 0), ("int4", 0), ("int4", 1)])
def test_layers_read_an_encoded_cache_as_the_layer_that_writes_it(
    name: PlaneFormat, skip: int, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one layer at each end is skipped, layer 1 reads a plain cache and layer 3 an encoded one."""

    def logits(**changes: Any) -> torch.Tensor:
        engine = build(tiny.config(pairs, kv=KV, **changes))
        tiny.enter(engine, tiny.request(prompt(70)))
        return tiny.decode(engine, 30, forced=prompt(30))[1]

    exact, found = logits(), logits(slot_format=SlotFormat(name, skip=skip))
    use_reference(monkeypatch)
    decoded = logits(slot_format=SlotFormat(name, skip=skip))
    assert (found - decoded).abs().mean() < 0.005 * exact.std()  # kernels round queries to int8
    assert 0 < (found - exact).abs().mean() < NEAR[name] * exact.std()


def test_packed_operators_read_shared_caches(pairs: Path) -> None:
    asked = tiny.request(prompt(60))

    def logits(engine: LocalEngine) -> torch.Tensor:
        tiny.enter(engine, asked)
        return tiny.decode(engine, 5, forced=prompt(5))[1].float()

    exact, packed = logits(build(tiny.config(pairs))), logits(build(tiny.config(pairs, dtype="bfloat16")))
    assert torch.nn.functional.cosine_similarity(exact, packed, dim=-1).min() > 0.99
