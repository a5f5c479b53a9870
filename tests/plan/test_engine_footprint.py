"""Bytes of an engine, against what it allocates and against sums."""

from pathlib import Path

import pytest

from ringkv.base.errors import DoesNotFit
from ringkv.models.config import load_config
from ringkv.plan.engine_footprint import engine_footprint
from ringkv.plan.footprint import TEMPORARIES
from tests.plan.models import SMOLLM2
from tests.plan.resolved import DEEPSEEK, resolved


def test_quantised_weights_are_counted_as_they_are_stored() -> None:
    engine = resolved(weights="int4")
    assert (engine.weights, engine.dtype) == ("int4", "bfloat16")
    tables = 49_152 * 576
    assert engine_footprint(SMOLLM2, engine).weights == (134_515_008 - tables) * 5 // 8 + tables
    assert engine_footprint(SMOLLM2, resolved()).weights == 134_515_008 * 2


def test_the_planned_cache_memory_is_what_an_engine_allocates(tmp_path: Path) -> None:
    tiny = pytest.importorskip("tests.engine.tiny", reason="transformers, which makes the tiny model, is missing")
    from ringkv.engine.build import build

    tiny.save(tmp_path, "Llama")
    for workspace in (0, 128):
        config = tiny.config(tmp_path, lanes=2, slots=3, store_bytes=10**6, prefill_workspace=workspace)
        engine = build(config)
        planned = engine_footprint(load_config(tmp_path), config)
        assert planned.held(3) == engine.limits.held_bytes
        assert (planned.staging, planned.store) == (engine.limits.staging_bytes, engine.limits.store_bytes)


def test_the_sampler_state_of_a_slot_grows_with_the_vocabulary_and_covers_an_engines_planes(tmp_path: Path) -> None:
    tiny = pytest.importorskip("tests.engine.tiny", reason="transformers, which makes the tiny model, is missing")
    from ringkv.engine.build import build

    vocab, slots = 20_000, 5
    tiny.save(tmp_path, "Llama", vocab_size=vocab)
    config = tiny.config(tmp_path, slots=slots)
    planned = slots * (engine_footprint(load_config(tmp_path), config).sampler - TEMPORARIES * vocab)
    assert planned == pytest.approx(build(config).limits.sampler_bytes, rel=0.001)


def test_drafts_are_counted_as_logits_and_temporaries() -> None:
    plain, drafting = (engine_footprint(SMOLLM2, resolved(speculate=drafts)) for drafts in (0, 3))
    assert drafting.sampler - plain.sampler == 3 * 49_152 * (4 + TEMPORARIES)


def test_slots_in_8_bits_take_a_byte_per_element_a_scale_per_vector_a_center_and_four_keys() -> None:
    plain, small = (engine_footprint(SMOLLM2, resolved(kv_format=one)) for one in (None, "int8"))
    vectors = 2048 * 30 * 3 * 2
    assert (plain.slot, small.slot) == (vectors * 64 * 2, vectors * (64 + 4) + 30 * 3 * 64 * 4 * (1 + 4))
    assert small.staging == plain.staging


def test_ranks_that_divide_the_slots_of_latents_need_their_entries_once() -> None:
    slots, heads = (
        engine_footprint(DEEPSEEK, resolved(DEEPSEEK, slots=8, tensor_parallel=4, attention_parallel=one))
        for one in ("slots", "heads")
    )
    entries = 27 * 2048 * (512 + 64) * 2  # of one slot
    assert (slots.entries(8), heads.entries(8)) == (8 * entries, 4 * 8 * entries)
    assert heads.total(8) - slots.total(8) == 3 * 8 * entries
    assert slots.slots_in(slots.total(8)) == 8
    with pytest.raises(DoesNotFit, match=r"8 slots .*63\.7 MB"):
        resolved(DEEPSEEK, slots.total(0), slots=8, tensor_parallel=4, prompt_tokens=32768)
