"""Formats of slots that a model cannot have are refused with the number and the remedy, by engine and planner alike."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from ringkv.base.cache_spec import IN_CHUNKS, LATENT_FORMATS, SKIPPED, Pages, PlaneFormat, SlotFormat
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import POLICIES, REVIEWING, WATCHING, KVChoice
from ringkv.models.config import ModelConfig, parse_config
from ringkv.models.slot_formats import check_drafts, check_slot_format, policies_of_requests
from ringkv.plan.complete import complete
from ringkv.plan.options import Options
from ringkv.plan.report import PlanRequest, report
from ringkv.plan.shapes import configurations, known
from tests.plan.models import SMOLLM2

ENCODED = [name for name in get_args(PlaneFormat) if name != "plain"]


def of(name: str) -> ModelConfig:
    return parse_config({key: value for key, value in configurations()[name].items() if key != "native"})


def refused(run: Any, *arguments: Any) -> tuple[str, str | None]:
    with pytest.raises(InvalidRequest) as raised:
        run(*arguments)
    return str(raised.value), raised.value.param


@pytest.mark.parametrize(
    ("model", "kv_format"),
    [
        *(("deepseek-v2-lite", kv_format) for kv_format in LATENT_FORMATS),
        *(("gemma-3n-e2b", kv_format) for kv_format in ENCODED if kv_format != IN_CHUNKS),
    ],
)
def test_latent_and_shared_caches_have_formats(model: str, kv_format: PlaneFormat) -> None:
    config, slots = of(model), SlotFormat(kv_format, SKIPPED[kv_format])
    check_slot_format(config, slots)
    assert known(model).with_slots(slots).groups == config.with_slots(slots).groups
    assert report(known(model), PlanRequest(kv_format=kv_format)).kv_format == kv_format


def test_chunks_are_refused_for_shared_caches() -> None:
    engine = refused(complete, Path("model"), of("gemma-3n-e2b"), Options(kv_format=IN_CHUNKS))
    assert "zipcache is not implemented for caches that several layers share; choose int4, int8" in engine[0]
    assert engine == refused(report, known("gemma-3n-e2b"), PlanRequest(kv_format=IN_CHUNKS))


@pytest.mark.parametrize("kv_format", sorted(set(ENCODED) - set(LATENT_FORMATS)))
def test_a_format_that_latents_cannot_have_is_refused(kv_format: PlaneFormat) -> None:
    engine = refused(complete, Path("model"), of("deepseek-v2-lite"), Options(kv_format=kv_format))
    assert engine[0].startswith(f"kv_format {kv_format} is not implemented for latent caches; choose plain, int8")
    assert engine == refused(report, known("deepseek-v2-lite"), PlanRequest(kv_format=kv_format))


def test_a_reading_layer_is_of_the_kind_that_reads_the_format_of_its_source() -> None:
    """In Gemma 3n the last 10 of 30 layers read what layers 18 and 19 have written."""
    found = of("gemma-3n-e2b").with_slots(SlotFormat("int4", 2))
    formats = {layer: group.format for group in found.groups for layer in group.layers}
    for kind in set(found.variants):
        sources = {found.kv_source[layer] for layer, own in enumerate(found.variants) if own == kind}
        assert len({formats[source] for source in sources}) == 1


@pytest.mark.parametrize(("kv_format", "skip"), [("plain", 0), ("int8", 0), ("int4", 14)])
def test_a_format_that_some_layers_have_is_accepted(kv_format: PlaneFormat, skip: int) -> None:
    """SmolLM2 has 30 layers: 14 at each end leave 2."""
    check_slot_format(SMOLLM2, SlotFormat(kv_format, skip))
    groups = known("smollm2").with_slots(SlotFormat(kv_format, skip)).groups
    assert sum(len(group.layers) for group in groups if group.format == kv_format) == 30 - 2 * skip


@pytest.mark.parametrize("skip", [15, 100])
def test_layers_at_both_ends_that_are_all_layers_are_refused(skip: int) -> None:
    message = f"kv_format_skip {skip} keeps all 30 layers plain, {skip} at each end; lower it to at most 14"
    engine = refused(complete, Path("model"), SMOLLM2, Options(kv_format="int4", kv_format_skip=skip))
    assert engine[0].startswith(message)
    assert engine[1] == "kv_format_skip"
    assert engine == refused(report, known("smollm2"), PlanRequest(kv_format="int4", kv_format_skip=skip))


def test_layers_cannot_stay_plain_without_a_format() -> None:
    engine = refused(complete, Path("model"), SMOLLM2, Options(kv_format_skip=3))
    assert engine[0].startswith("kv_format_skip 3 keeps layers plain, and kv_format plain keeps all of them")
    assert engine == refused(report, known("smollm2"), PlanRequest(kv_format_skip=3))


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("smollm2", Options(kv_format="int4"), "not implemented for kv_format int4; choose plain, or equal"),
        ("smollm2", Options(tensor_parallel=3), "not implemented for heads on 3 ranks; choose equal"),
        ("deepseek-v2-lite", Options(), "does not apply to latents, which all heads share; choose equal"),
    ],
)
def test_what_heads_cannot_divide_is_refused(model: str, options: Options, message: str) -> None:
    found = refused(complete, Path("model"), of(model), replace(options, kv_heads="adaptive"))
    assert found[0].startswith("kv_heads ")
    assert message in found[0]
    assert found[1] == "kv_heads"


def test_layers_with_a_sliding_window_have_equal_heads() -> None:
    found = of("gemma-3n-e2b").with_slots(SlotFormat(by_head=True)).groups
    assert {group.window is None for group in found if group.by_head} == {True}
    assert {group.window is None for group in found if not group.by_head} == {False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(kv_page=16), "kv_page 16 is for kv_policy arkvale, and it is snapstream; choose arkvale, or snapkv"),
        (Options(kv_prefetch=True), "kv_prefetch is for kv_policy arkvale, and it is snapstream; choose arkvale"),
        (Options(kv_read=512), "kv_read 512 is for kv_policy snapkv, and it is snapstream; choose snapkv, or leave"),
        (Options(kv_policy="snapkv", kv_tier="/tmp"), "kv_tier /tmp is for kv_policy arkvale, and it is snapkv"),
        (Options(kv_policy="snapkv", kv_read=512, kv_format="fp8"), "nor is kv_read; choose plain or int8"),
        (Options(kv_policy="arkvale", kv_page=20), "kv_page is 20; it must be one of 32, 16"),
        (Options(kv_policy="arkvale", kv_pages_by="row"), "kv_pages_by is 'row'; it must be one of head, layer"),
        (Options(kv_policy="arkvale", kv_unread="no"), "kv_unread is 'no'; it must be one of drop, estimate"),
        (
            Options(kv_policy="arkvale", kv_prefetch=True),
            "kv_prefetch needs a kv_tier from which pages are fetched",
        ),
        (
            Options(kv_policy="arkvale", kv_prefetch=True, kv_tier="memory"),
            "choose a directory as kv_tier, or leave it out",
        ),
        (
            Options(kv_policy="arkvale", kv_prefetch=True, kv_tier="/tmp", speculate=3),
            "speculate 3 is not implemented with kv_prefetch; choose 0, or leave kv_prefetch out",
        ),
        (
            Options(kv_policy="arkvale", kv_pages_by="layer", tensor_parallel=3),
            "kv_pages_by layer is not implemented for heads on 3 ranks, which would select their own pages; choose",
        ),
        (Options(kv_policy="arkvale", kv_tier="/nowhere"), "kv_tier /nowhere is not a directory; create it, or choose"),
        (Options(kv_policy="arkvale", kv_format="int4"), "kv_policy arkvale is not implemented for kv_format int4"),
        (Options(kv_policy="arkvale", kv_heads="global"), "arkvale keeps every token, so heads are equal"),
        (
            Options(kv_policy="arkvale", kv_tier="/tmp", device="cuda"),
            "kv_tier with a directory is not implemented on CUDA; choose memory",
        ),
        (
            Options(kv_policy="arkvale", kv_tier="memory", device="cuda", speculate=3),
            "speculate 3 is not implemented for kv_tier memory on a GPU; choose 0, or leave kv_tier out",
        ),
    ],
)
def test_pages_that_cannot_be_are_refused(options: Options, message: str) -> None:
    assert message in refused(complete, Path("model"), SMOLLM2, options)[0]


@pytest.mark.parametrize("options", [Options(kv_policy="arkvale", kv_tier="memory"), Options(kv_heads="global")])
def test_pages_and_heads_of_different_lengths_are_accepted_on_a_gpu(options: Options) -> None:
    found = complete(Path("model"), SMOLLM2, replace(options, device="cuda:0")).slot_format
    assert bool(found.pages) != found.by_head


def test_drafts_are_fewer_than_the_means_from_which_they_are_taken_back() -> None:
    slots = SlotFormat(pages=Pages(32, estimated=True))
    check_drafts(slots, 15)
    assert refused(check_drafts, slots, 16)[0].startswith("speculate 16 is not possible with kv_unread estimate")


def test_a_slot_in_pages_holds_a_whole_prompt_and_its_output() -> None:
    engine = complete(Path("model"), SMOLLM2, Options(kv_policy="arkvale", prompt_tokens=2000, output_tokens=100))
    assert (engine.kv.budget, engine.kv_page, engine.capacity) == (2048, 32, 2176)  # 2048 is 4 chunks
    filed = replace(engine, kv_tier=Path("/tmp"))
    (memory, files) = (SMOLLM2.with_slots(one.slot_format).groups[0].slot_bytes(2176, 2) for one in (engine, filed))
    assert memory - files == 2176 * SMOLLM2.groups[0].token_bytes(2)


def test_a_slot_of_a_compressed_prompt_that_is_read_in_pages_holds_whole_ones() -> None:
    engine = complete(Path("model"), SMOLLM2, Options(kv_policy="snapkv", kv_budget=1000, kv_read=256, kv_page=16))
    assert (engine.kv.budget, engine.kv.read, engine.kv_page, engine.capacity) == (1000, 256, 16, 1008)


def test_a_budget_is_no_more_than_a_slot_in_pages_holds() -> None:
    engine = complete(Path("model"), SMOLLM2, Options(kv_policy="arkvale", prompt_tokens=512, output_tokens=256))
    assert engine.kv.budget == engine.capacity == 768


@pytest.mark.parametrize("options", [Options(kv_policy="arkvale"), Options(kv_heads="adaptive")])
def test_a_model_that_has_sliding_windows_alone_is_refused(options: Options) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 99, "rms_norm_eps": 1e-5}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "hidden_act": "silu", "rope_theta": 1e4}
    limits = {"max_position_embeddings": 4096, "sliding_window": 64}
    config = parse_config(
        {"architectures": ["MistralForCausalLM"], "model_type": "mistral", **sizes, **heads, **limits}
    )
    assert (
        "a model whose layers all have a sliding window; choose" in refused(complete, Path("model"), config, options)[0]
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("deepseek-v2-lite", "policies that review slots are not implemented for latents or shared caches"),
        ("gemma-3n-e2b", "policies that review slots are not implemented for latents or shared caches"),
    ],
)
def test_reviews_are_refused_for_caches_that_have_none_of_their_own(model: str, message: str) -> None:
    for policy in REVIEWING:
        text, field = refused(complete, Path("model"), of(model), Options(kv_policy=policy))
        assert text.startswith(message)
        assert field == "kv_policy"


@pytest.mark.parametrize(
    ("default", "refused"),
    [
        (KVChoice(), {"arkvale", *REVIEWING}),
        (KVChoice("arkvale"), {*REVIEWING}),
        (KVChoice("h2o"), {"arkvale", "triattention"}),
        (KVChoice("triattention"), {"arkvale", *WATCHING}),
    ],
)
def test_a_request_may_choose_the_policies_that_its_slots_can_have(default: KVChoice, refused: set[str]) -> None:
    slots = SlotFormat(
        pages=Pages(16) if default.policy == "arkvale" else None,
        review=default.review if default.policy in WATCHING else 0,
        calibrated=default.policy == "triattention",
    )
    groups = replace(SMOLLM2, slots=slots).groups
    assert set(policies_of_requests(groups, default)) == set(POLICIES) - refused
