"""Layers with a sliding window beside layers that a policy compresses."""

import json
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ringkv.base.cache_spec import LayerGroup
from ringkv.base.engine import chunks
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import BLOCK, KVChoice
from ringkv.base.selectors import TOVA, KeyDiff, KVzip, Selector, SnapKV
from ringkv.engine.build import build
from ringkv.engine.engine import LocalEngine
from ringkv.machine.compiler import missing_for_graphs
from tests.engine import kept, tiny
from tests.engine.test_engine import prompt
from tests.engine.test_golden import FULL, GEMMA3, GEMMA3_ROPES, GEMMA3N, GEMMA4
from tests.engine.test_turns import STORE, read, take_turn
from tests.refusals import refusal

WINDOW = 16
LOCAL, GLOBAL = (0, 2), (1, 3)
SELECTORS = (SnapKV(window=8), TOVA(), KeyDiff(), KVzip())


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemma3")
    tiny.save(folder, "Gemma3", **GEMMA3, rope_parameters=GEMMA3_ROPES)
    return folder


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistral")
    tiny.save(folder, "Mistral", sliding_window=WINDOW)
    return folder


@pytest.mark.parametrize("select", SELECTORS, ids=lambda select: type(select).__name__)
@pytest.mark.parametrize("count", [10, 16, 17, 150])
def test_window_layers_hold_exactly_their_window_whatever_global_layers_select(
    gemma: Path, select: Selector, count: int
) -> None:
    engine = build(tiny.config(gemma))
    asked = tiny.request(prompt(count), kv=tiny.choice("snapstream", select))
    tiny.enter(engine, asked)
    kept = engine.kept(0, asked.kv)
    for layer in LOCAL:
        for head in kept[layer]:
            assert sorted(head) == list(range(max(0, count - WINDOW), count))
    for layer in GLOBAL:
        assert kept[layer].shape[1] == min(count, 64)
    tiny.decode(engine, 40)
    _, layouts = engine.batch.owner(0)
    assert [layout.live(count + 40) for layout in layouts] == [64 if count > 24 else count + 40, WINDOW]


def test_slots_of_window_layers_are_rings_of_exactly_their_window(gemma: Path) -> None:
    bodies = build(tiny.config(gemma)).batch.bodies
    assert [(body.group.layers, body.entries) for body in bodies] == [(GLOBAL, 64), (LOCAL, WINDOW)]


def test_staging_of_window_layers_is_a_window_and_a_chunk_in_blocks_and_one_block(gemma: Path) -> None:
    bodies = build(tiny.config(gemma, lanes=2, prompt_tokens=512, chunk=64)).lanes.staging.bodies
    assert [body.entries for body in bodies] == [2 * 512, 2 * (128 + BLOCK)]  # 16 + 64 take two blocks of 64


@pytest.mark.parametrize("select", [SnapKV(window=8), KVzip()], ids=["snapkv", "kvzip"])
@pytest.mark.parametrize("count", [100, 250])
def test_window_layers_that_stage_a_part_give_the_bits_of_those_that_stage_all(
    gemma: Path, select: Selector, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tiny.request(prompt(count), kv=tiny.choice("snapstream", select))
    engines = [build(tiny.config(gemma, prompt_tokens=512))]
    monkeypatch.setattr(LayerGroup, "staged_entries", lambda group, tokens, lanes, chunk: tokens)
    engines.append(build(tiny.config(gemma, prompt_tokens=512)))
    sizes = [engine.lanes.staging.bodies[1].entries for engine in engines]
    assert sizes == [128, 512]
    for engine in engines:
        tiny.enter(engine, tiny.request(prompt(40, 5)), slot=1)  # leaves entries behind
        tiny.enter(engine, asked)
        engine.insert(0, 2, tiny.request(list(asked.tokens), kv=tiny.choice("streaming")))
    part, whole = ([engine.export(slot) for slot in (0, 2)] for engine in engines)
    assert part == whole


@pytest.mark.skipif(missing_for_graphs() is not None, reason=str(missing_for_graphs()))
def test_prompts_that_share_passes_move_up_in_staging_each_by_its_own(tmp_path: Path) -> None:
    tiny.save(tmp_path, "Mistral", sliding_window=WINDOW, vocab_size=224)
    settings = {"lanes": 2, "prompt_tokens": 512, "chunk": 128, "dtype": "bfloat16"}
    shared, alone = (build(tiny.config(tmp_path, **settings)) for _ in range(2))
    requests = [tiny.request(prompt(count), name=str(count)) for count in (450, 290)]
    unit = shared.limits.unit
    works = [list(chunks(one, lane, shared.begin(one, lane).tokens, unit)) for lane, one in enumerate(requests)]
    for work in zip_longest(*works):
        shared.prefill([chunk for chunk in work if chunk])
    for lane, one in enumerate(requests):
        tiny.stage(alone, one, lane)
        assert torch.equal(shared.lanes.logits(lane), alone.lanes.logits(lane))
        for engine in (shared, alone):
            engine.insert(lane, lane, one)
        assert shared.export(lane) == alone.export(lane)


def test_compressed_decoding_is_attention_to_what_each_layer_keeps(gemma: Path) -> None:
    """transformers' own model with a mask a layer: global layers see sinks and recent tokens, local ones the window."""
    tokens = prompt(140)
    engine = build(tiny.config(gemma))
    streaming = tiny.request(tokens[:120], kv=tiny.choice("streaming"))
    tiny.enter(engine, streaming)
    _, logits = tiny.decode(engine, 20, forced=tokens[120:])
    want = _masked(gemma, tokens, prompt_tokens=120, sinks=4, budget=64)
    torch.testing.assert_close(logits, want[119:139], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def _masked(folder: Path, tokens: list[int], prompt_tokens: int, sinks: int, budget: int) -> torch.Tensor:
    model = transformers.Gemma3ForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    at, of = torch.arange(len(tokens))[:, None], torch.arange(len(tokens))
    causal = of <= at
    decoding = at >= prompt_tokens
    streamed = causal & (~decoding | (of < sinks) | (of > at - (budget - sinks)))
    masks = {"full_attention": streamed, "sliding_attention": causal & (of > at - WINDOW)}
    added = {name: torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)[None, None] for name, mask in masks.items()}
    return model(torch.tensor([tokens]), attention_mask=added).logits[0]


@pytest.mark.parametrize("same", [200, 130])
def test_a_stored_prefix_serves_both_groups(gemma: Path, same: int) -> None:
    first = prompt(200)
    second = tiny.request([*first[:same], *prompt(40, 1)])
    stored = build(tiny.config(gemma, store_bytes=STORE))
    read(stored, tiny.request(first))
    known, logits = read(stored, second)
    assert known > 0
    fresh = build(tiny.config(gemma))
    assert torch.equal(logits, read(fresh, second)[1])
    for engine in (stored, fresh):
        engine.insert(0, 0, second)
    assert torch.equal(tiny.decode(stored, 30)[1], tiny.decode(fresh, 30)[1])


@pytest.mark.parametrize("lane", [0, 1])
def test_a_chunk_of_several_pieces_is_stored_whole_before_its_tokens_go_out_of_sight(gemma: Path, lane: int) -> None:
    settings = {"prompt_tokens": 512, "chunk": 320, "lanes": 2}
    stored, fresh = build(tiny.config(gemma, store_bytes=STORE, **settings)), build(tiny.config(gemma, **settings))
    first = prompt(480)  # its last 160 tokens take three pieces
    second = tiny.request([*first[:384], *prompt(40, 1)])
    tiny.stage(stored, tiny.request(first), lane)
    assert stored.begin(second, 0).tokens == 384
    for engine in (stored, fresh):
        tiny.stage(engine, second, 0)
    assert torch.equal(stored.lanes.logits(0), fresh.lanes.logits(0))


def test_a_window_conversation_that_goes_on_from_its_slot_answers_as_if_read_again(mistral: Path) -> None:
    choice = KVChoice(budget=64, sinks=4, recent=16, select=SnapKV(window=8), turns="continue")
    engine = build(tiny.config(mistral, store_bytes=STORE))
    first = tiny.request(prompt(100), kv=choice)
    _, answer = take_turn(engine, first, 30)
    second = replace(first, tokens=(*first.tokens, *answer, *prompt(40, 2)))
    known, logits = read(engine, second)
    assert known == 130
    fresh = build(tiny.config(mistral))
    torch.testing.assert_close(logits, read(fresh, second)[1], atol=1e-5, rtol=1e-5)
    for one in (engine, fresh):
        one.insert(0, 0, second)
    torch.testing.assert_close(tiny.decode(engine, 40)[1], tiny.decode(fresh, 40)[1], atol=1e-5, rtol=1e-5)


def test_the_text_part_of_a_gemma3_that_takes_images_matches_transformers(tmp_path: Path) -> None:
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config={**tiny.SIZES, **GEMMA3},
        vision_config={**vision, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
    )
    torch.manual_seed(7)
    theirs = transformers.Gemma3ForConditionalGeneration(config).eval().float()
    theirs.save_pretrained(tmp_path)
    tokens = prompt(60)
    with torch.inference_mode():
        want = theirs(torch.tensor([tokens])).logits[0]
    engine = build(tiny.config(tmp_path))
    torch.testing.assert_close(torch.cat(list(engine.prompt_logits(tokens))), want, atol=1e-4, rtol=1e-4)


def test_the_text_part_of_a_gemma4_that_takes_images_matches_transformers(tmp_path: Path) -> None:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "position_embedding_size": 64,
        **heads,
    }
    config = transformers.Gemma4Config(text_config={**tiny.SIZES, **GEMMA4}, vision_config=vision, audio_config=None)
    torch.manual_seed(7)
    theirs = transformers.Gemma4ForConditionalGeneration(config).eval().float()
    theirs.save_pretrained(tmp_path)
    tokens = prompt(60)
    with torch.inference_mode():
        want = theirs(torch.tensor([tokens])).logits[0]
    engine = build(tiny.config(tmp_path))
    torch.testing.assert_close(torch.cat(list(engine.prompt_logits(tokens))), want, atol=1e-4, rtol=1e-4)


def test_the_text_part_of_a_gemma3n_that_takes_images_is_read_as_its_text_model(tmp_path: Path) -> None:
    theirs = tiny.save(tmp_path, "Gemma3n", **GEMMA3N)
    tokens = prompt(60)
    want = kept.logits(theirs, tokens)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    save_file({**renamed, "model.audio_tower.x": torch.ones(3)}, tmp_path / "model.safetensors")
    text = json.loads((tmp_path / "config.json").read_text())
    whole = {"architectures": ["Gemma3nForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    engine = build(tiny.config(tmp_path))
    torch.testing.assert_close(torch.cat(list(engine.prompt_logits(tokens))), want, atol=1e-4, rtol=1e-4)


def test_going_on_from_slots_whose_groups_hold_different_tokens_is_refused_by_name(gemma: Path) -> None:
    choice = replace(tiny.choice("snapstream"), turns="continue")
    engine = build(tiny.config(gemma, store_bytes=STORE))
    with refusal("kv_turns", "16 tokens"):
        engine.admit(tiny.request(prompt(100), kv=choice))
    with pytest.raises(InvalidRequest, match="kv_turns continue"):
        build(tiny.config(gemma, store_bytes=STORE, kv=choice))


def test_an_exported_request_goes_on_elsewhere_with_both_groups(gemma: Path) -> None:
    here, there = (build(tiny.config(gemma)) for _ in range(2))
    tiny.enter(here, tiny.request(prompt(100)), slot=1)
    tiny.decode(here, 30, slot=1)
    there.restore(here.export(1), 0)
    assert torch.equal(tiny.decode(here, 20, slot=1)[1], tiny.decode(there, 20, slot=0)[1])


@pytest.mark.parametrize("weights", ["bf16", "int8"])
def test_bfloat16_gives_nearly_the_logits_of_float32(weights: str, tmp_path: Path) -> None:
    """Packed matrices, if there are C++ kernels: gate and up alternate by strips."""
    tiny.save(tmp_path, "Gemma3", **GEMMA3, vocab_size=256, tie_word_embeddings=True)
    exact, packed = (_decoded(tmp_path, **how) for how in ({}, {"dtype": "bfloat16", "weights": weights}))
    assert (packed - exact).norm() / exact.norm() < 0.08


def _decoded(folder: Path, **how: Any) -> torch.Tensor:
    engine: LocalEngine = build(tiny.config(folder, capacity=128, kv=FULL, **how))
    tiny.enter(engine, tiny.request(prompt(60)))
    return tiny.decode(engine, 30, forced=prompt(30, 3))[1]
