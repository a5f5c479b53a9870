"""What a model's slots cannot have is refused with the setting at fault, by engine and planner alike."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from ringkv.base.cache_spec import IN_CHUNKS, SKIPPED, PageFormat, PlaneFormat, SlotFormat
from ringkv.base.errors import InvalidRequest
from ringkv.base.kv import POLICIES, KVChoice
from ringkv.models.config import ModelConfig, parse_config
from ringkv.models.slot_formats import check_sizes, policies_of_requests
from ringkv.plan.complete import complete
from ringkv.plan.options import Options
from ringkv.plan.report import PlanRequest, report
from ringkv.plan.shapes import configurations, known
from tests.plan.models import SMOLLM2

PAGES_ON_DISK = SlotFormat(reading=PageFormat(16, on_disk=True))
ENTRYWISE = [name for name in get_args(PlaneFormat) if name not in ("plain", IN_CHUNKS)]


def of(name: str) -> ModelConfig:
    return parse_config({key: value for key, value in configurations()[name].items() if key != "native"})


def refused(run: Any, *arguments: Any) -> tuple[str, str | None]:
    with pytest.raises(InvalidRequest) as raised:
        run(*arguments)
    return str(raised.value), raised.value.param


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "gemma-3n-e2b"])
@pytest.mark.parametrize("kv_format", ENTRYWISE)
def test_latent_and_shared_caches_have_encodings(model: str, kv_format: PlaneFormat) -> None:
    config, slots = of(model), SlotFormat(kv_format, skip=SKIPPED[kv_format])
    check_sizes(config, slots, "cpu")
    assert known(model).with_slots(slots).groups == config.with_slots(slots).groups
    assert report(known(model), PlanRequest(kv_format=kv_format)).kv_format == kv_format


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "gemma-3n-e2b"])
def test_engine_and_planner_refuse_chunks_alike(model: str) -> None:
    engine = refused(complete, Path("model"), of(model), Options(kv_format=IN_CHUNKS))
    assert engine[1] == "kv_format"
    assert engine == refused(report, known(model), PlanRequest(kv_format=IN_CHUNKS))


def test_a_reading_layer_is_of_the_kind_that_reads_the_format_of_its_source() -> None:
    """In Gemma 3n the last 10 of 30 layers read what layers 18 and 19 have written."""
    config = of("gemma-3n-e2b").with_slots(SlotFormat("int4", skip=2))
    formats = {layer: group.slots.encoding for group in config.groups for layer in group.layers}
    for kind in set(config.variants):
        sources = {config.kv_source[layer] for layer, variant in enumerate(config.variants) if variant == kind}
        assert len({formats[source] for source in sources}) == 1


@pytest.mark.parametrize(("kv_format", "skip"), [("plain", 0), ("int8", 0), ("int4", 14)])
def test_a_format_that_some_layers_have_is_accepted(kv_format: PlaneFormat, skip: int) -> None:
    """SmolLM2 has 30 layers: 14 at each end leave 2."""
    slots = SlotFormat(kv_format, skip=skip)
    check_sizes(SMOLLM2, slots, "cpu")
    groups = known("smollm2").with_slots(slots).groups
    assert sum(len(group.layers) for group in groups if group.slots.encoding == kv_format) == 30 - 2 * skip


@pytest.mark.parametrize(("kv_format", "skip"), [("int4", 15), ("int4", 100), (None, 3)])
def test_layers_that_leave_no_encoded_ones_are_refused(kv_format: PlaneFormat | None, skip: int) -> None:
    options = Options(kv_format=kv_format, kv_format_skip=skip)
    engine = refused(complete, Path("model"), SMOLLM2, options)
    assert engine[1] == "kv_format_skip"
    request = PlanRequest(kv_format=kv_format, kv_format_skip=skip)
    assert engine == refused(report, known("smollm2"), request)


def test_formats_that_differ_in_their_reading_are_different() -> None:
    assert len({SlotFormat(), SlotFormat(reading="ragged"), SlotFormat(reading=PageFormat(16)), PAGES_ON_DISK}) == 4


def test_layers_with_a_sliding_window_have_equal_heads() -> None:
    groups = of("gemma-3n-e2b").with_slots(SlotFormat(reading="ragged")).groups
    assert {group.window is None for group in groups if group.slots.is_ragged} == {True}
    assert {group.window is None for group in groups if not group.slots.is_ragged} == {False}


@pytest.mark.parametrize(
    ("options", "param"),
    [
        (Options(kv_page=16), "kv_page"),
        (Options(kv_policy="snapkv", kv_tier="/tmp"), "kv_tier"),
        (Options(kv_policy="arkvale", kv_page=20), "kv_page"),
        (Options(kv_policy="arkvale", kv_tier="/nowhere"), "kv_tier"),
    ],
)
def test_settings_of_pages_that_mean_nothing_are_refused(options: Options, param: str) -> None:
    assert refused(complete, Path("model"), SMOLLM2, options)[1] == param


@pytest.mark.parametrize("options", [Options(kv_policy="arkvale", kv_tier="memory"), Options(kv_heads="global")])
def test_pages_and_heads_of_different_lengths_are_accepted_on_a_gpu(options: Options) -> None:
    slots = complete(Path("model"), SMOLLM2, replace(options, device="cuda:0")).slot_format
    assert bool(slots.pages) != slots.is_ragged


def test_a_slot_in_pages_holds_a_whole_prompt_and_its_output() -> None:
    engine = complete(Path("model"), SMOLLM2, Options(kv_policy="arkvale", prompt_tokens=2000, output_tokens=100))
    pages = engine.slot_format.pages
    assert pages is not None
    assert (engine.kv.budget, pages.size, engine.capacity) == (2048, 32, 2176)  # 2048 is 4 chunks
    on_disk = engine.slot_format._replace(reading=pages._replace(on_disk=True))
    memory, files = (SMOLLM2.with_slots(slots).groups[0].slot_bytes(2176, 2) for slots in (engine.slot_format, on_disk))
    assert memory - files == 2176 * SMOLLM2.groups[0].token_bytes(2)


def test_a_budget_is_no_more_than_a_slot_in_pages_holds() -> None:
    engine = complete(Path("model"), SMOLLM2, Options(kv_policy="arkvale", prompt_tokens=512, output_tokens=256))
    assert engine.kv.budget == engine.capacity == 768


@pytest.mark.parametrize(
    ("default", "refused"),
    [
        (KVChoice(), {"arkvale", "scissorhands"}),
        (KVChoice("arkvale"), {"scissorhands"}),
        (KVChoice("scissorhands"), {"arkvale"}),
    ],
)
def test_a_request_may_choose_the_policies_that_its_slots_can_have(default: KVChoice, refused: set[str]) -> None:
    slots = SlotFormat(queries=default.review_interval)
    if default.policy == "arkvale":
        slots = slots._replace(reading=PageFormat(16))
    groups = replace(SMOLLM2, slots=slots).groups
    assert set(policies_of_requests(groups, default)) == set(POLICIES) - refused
