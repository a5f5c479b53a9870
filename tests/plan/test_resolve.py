from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ringkv.base.cache_spec import PlaneFormat
from ringkv.base.config import EngineConfig
from ringkv.base.errors import BudgetTooSmall, DoesNotFit, InvalidRequest
from ringkv.base.ranks import Rank
from ringkv.base.selectors import SnapKV
from ringkv.models.config import ModelConfig, load_config, parse_config
from ringkv.plan import complete
from ringkv.plan import resolve as module
from ringkv.plan.engine_footprint import RESERVE, engine_footprint
from ringkv.plan.footprint import TEMPORARIES
from ringkv.plan.options import Options
from ringkv.plan.resolve import Wanted, resolve, resolve_all
from ringkv.plan.shapes import configurations
from tests.plan.models import LLAMA_8B, QWEN, SMOLLM2

PLENTY = 10**14
SMOLLM2_QUERIES = 30 * 9 * 32 * 64 * 2  # bytes of a lane's last 32 queries
QWEN_QUERIES = 28 * 12 * 32 * 128 * 2
# Bytes to sample from one slot: three planes of 4 bytes, two of 1, one of a bit, and temporaries.
SMOLLM2_SAMPLER = 49_152 * (14 + TEMPORARIES) + 49_152 // 8
QWEN_SAMPLER = 151_936 * (14 + TEMPORARIES) + 151_936 // 8
DIRECTORY = Path("models/some-model")
DEEPSEEK = parse_config({key: value for key, value in configurations()["deepseek-v2-lite"].items() if key != "hub"})


def resolved(model: ModelConfig = SMOLLM2, memory: int = PLENTY, **options: Any) -> EngineConfig:
    return resolve(DIRECTORY, model, Options(**options), memory)


def test_the_defaults_are_snapstream_over_the_whole_context(tmp_cache: Path) -> None:
    engine = resolved()
    assert (engine.kv.policy, engine.kv.budget, engine.capacity) == ("snapstream", 2048, 2048)
    assert (engine.prompt_tokens, engine.chunk, engine.slots, engine.lanes) == (8192, 512, 1, 1)
    assert (engine.dtype, engine.device, engine.model_dir) == ("bfloat16", "cpu", DIRECTORY)
    assert engine.cache_dir == tmp_cache


def test_chunks_are_larger_on_a_gpu() -> None:
    assert resolved(LLAMA_8B, device="cuda").chunk == resolved(LLAMA_8B, device="cuda:1").chunk == 2048
    assert resolved(LLAMA_8B, device="cuda", chunk=256).chunk == 256
    assert resolved(LLAMA_8B, device="cpu").chunk == 512


def test_long_contexts_stage_32k_by_default() -> None:
    assert resolved(LLAMA_8B).prompt_tokens == 32768
    assert resolved(LLAMA_8B, prompt_tokens=100_000).prompt_tokens == 100_352  # 196 chunks of 512


def test_every_option_reaches_the_engine() -> None:
    engine = resolved(
        kv_policy="streaming",
        kv_budget=640,
        kv_sinks=8,
        kv_recent="10%",
        kv_window=16,
        kv_kernel=7,
        kv_pooling="avg",
        kv_groups="max",
        kv_domain="candidates",
        kv_elastic=False,
        slots=3,
        prompt_tokens=1000,
        chunk=256,
        lanes=2,
        dtype="float32",
        weights="bf16",
        graphs="off",
        threads=5,
    )
    kv = engine.kv
    assert (kv.policy, kv.budget, kv.sinks, kv.recent, kv.elastic) == ("streaming", 640, 8, 0.1, False)
    assert kv.select == SnapKV(window=16, kernel=7, pooling="avg", groups="max", domain="candidates")
    assert (engine.slots, engine.prompt_tokens, engine.chunk) == (3, 1024, 256)
    assert (engine.lanes, engine.staged_tokens) == (3, 2 * 1024 + 1024)  # a lane for each slot, and short prompts
    assert (engine.dtype, engine.graphs, engine.threads) == ("float32", "off", 5)


def test_quantised_weights_are_counted_as_they_are_stored() -> None:
    engine = resolved(weights="int4")
    assert (engine.weights, engine.dtype) == ("int4", "bfloat16")
    tables = 49_152 * 576
    assert engine_footprint(SMOLLM2, engine).weights == (134_515_008 - tables) * 5 // 8 + tables
    assert engine_footprint(SMOLLM2, resolved()).weights == 134_515_008 * 2


def test_weights_of_other_bits_are_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidRequest, match=r"weights is 'int5'; it must be one of bf16, int8, int4"):
        resolved(weights="int5")


def test_activations_are_int8_if_weights_are_quantised_and_the_processor_multiplies_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(instruction: str, **options: str) -> str:
        monkeypatch.setattr(complete, "instructions", lambda: frozenset((instruction,)))
        return resolved(**options).activations

    assert found("avx512_vnni", weights="int8") == found("avx_vnni", weights="int4", activations="auto") == "int8"
    assert found("avx2", weights="int8", activations="int8") == "int8"
    assert found("avx2", weights="int8") == found("avx512_vnni") == "16-bit"
    assert found("avx512_vnni", weights="int4", activations="16-bit") == "16-bit"
    with pytest.raises(InvalidRequest, match="activations int8 need weights int8 or int4"):
        resolved(activations="int8")


@pytest.mark.parametrize("elsewhere", [{"dtype": "float32"}, {"device": "cuda"}])
def test_quantised_weights_are_refused_if_no_kernel_multiplies_them(elsewhere: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match=r"weights int8 run on the CPU with dtype bfloat16.*choose bf16"):
        resolved(weights="int8", **elsewhere)


def test_compression_is_of_the_longest_prompt() -> None:
    assert resolved(kv_compression="4x").capacity == 2048
    assert resolved(kv_compression="4x", prompt_tokens=7168).capacity == 1792
    assert resolved(QWEN, kv_compression=16, prompt_tokens=16384).capacity == 1024


def test_the_full_cache_holds_the_longest_prompt_and_an_output() -> None:
    assert resolved(QWEN, kv_policy="full", prompt_tokens=8192).capacity == 8192 + 1024
    assert resolved(QWEN, kv_policy="full", prompt_tokens=8192, output_tokens=100).capacity == 8192 + 100
    assert resolved(kv_policy="full").capacity == 8192  # the context is the end of it


def test_a_full_cache_may_have_a_budget() -> None:
    assert resolved(kv_policy="full", kv_budget=1024).capacity == 1024


def test_a_budget_over_the_context_is_the_context() -> None:
    assert resolved(kv_budget=100_000).capacity == 8192
    assert resolved(replace(SMOLLM2, context=1024)).capacity == 1024


@settings(deadline=None)
@given(context=st.integers(64, 5000), chunk=st.integers(1, 1024), data=st.data())
def test_the_prompt_limit_is_whole_chunks_inside_the_context(context: int, chunk: int, data: st.DataObject) -> None:
    requested = data.draw(st.integers(1, context))
    model = replace(SMOLLM2, context=context)
    engine = resolved(model, chunk=chunk, prompt_tokens=requested, kv_policy="full", graphs="off")
    assert engine.prompt_tokens % engine.chunk == 0
    assert engine.prompt_tokens <= context
    assert engine.chunk <= chunk
    chunks = engine.prompt_tokens // engine.chunk
    assert engine.prompt_tokens > requested - chunks  # short by less than a token per chunk


@settings(deadline=None)
@given(memory=st.integers(RESERVE, 4 * RESERVE), chunk=st.integers(1, 40_000), slots=st.integers(1, 64))
@example(memory=1_543_714_304 * 2 + (2048 + 512) * 28_672 + QWEN_QUERIES + QWEN_SAMPLER + RESERVE, chunk=3, slots=1)
def test_what_is_resolved_fits_or_is_refused(memory: int, chunk: int, slots: int) -> None:
    try:
        engine = resolved(QWEN, memory, chunk=chunk, slots=slots, kv_budget=512, graphs="off", dtype="bfloat16")
    except DoesNotFit:
        least = 1_543_714_304 * 2 + (2048 + slots * 512) * 28_672 + QWEN_QUERIES + slots * QWEN_SAMPLER + RESERVE
        assert memory < least or chunk > 2048 / 2
        return
    held = (engine.prompt_tokens + engine.slots * engine.capacity) * 28_672 + QWEN_QUERIES + slots * QWEN_SAMPLER
    assert 1_543_714_304 * 2 + held + RESERVE <= memory


def test_a_prompt_limit_left_open_is_halved_until_it_fits() -> None:
    weights, token = 1_543_714_304 * 2, 28_672
    memory = weights + RESERVE + QWEN_QUERIES + QWEN_SAMPLER + (8192 + 2048) * token  # staging, one slot
    assert resolved(QWEN, memory).prompt_tokens == 8192
    assert resolved(QWEN, memory - 1).prompt_tokens == 4096
    with pytest.raises(DoesNotFit):
        resolved(QWEN, memory - 1, prompt_tokens=8192)


def test_short_prompts_have_staging_of_their_own_unless_memory_is_short() -> None:
    weights, token = 134_515_008 * 2, 23_040
    rest = weights + RESERVE + 2 * SMOLLM2_SAMPLER
    short = rest + 2 * SMOLLM2_QUERIES + (8192 + 4096 + 2 * 2048) * token
    assert [
        (one.lanes, one.staged_tokens) for one in (resolved(slots=2, memory=memory) for memory in (short, short - 1))
    ] == [
        (2, 8192 + 4096),
        (1, 8192),
    ]
    assert resolved(slots=40).lanes == 16
    assert resolved(slots=4, prompt_tokens=1024).staged_tokens == 2 * 1024


def test_too_many_slots_are_refused_with_the_bytes_and_what_would_fit() -> None:
    weights, token = 134_515_008 * 2, 23_040
    memory = weights + RESERVE + SMOLLM2_QUERIES + 5 * SMOLLM2_SAMPLER + (8192 + 5 * 2048) * token
    assert resolved(slots=5, prompt_tokens=8192, memory=memory).slots == 5
    with pytest.raises(
        DoesNotFit, match=r"6 slots of 2,048 entries \(47.2 MB each, and 2.66 MB of sampler state\).*5 slots"
    ):
        resolved(slots=6, prompt_tokens=8192, memory=memory)


@pytest.mark.parametrize(
    ("memory", "remedy"),
    [(10**9, "smaller model or budget"), (134_515_008 * 2 + RESERVE + 8000 * 23_040, "lower prompt_tokens")],
)
def test_if_no_slot_fits_the_remedy_names_what_would_help(memory: int, remedy: str) -> None:
    with pytest.raises(DoesNotFit, match=f"not even one slot fits, so .*{remedy}"):
        resolved(prompt_tokens=8192, memory=memory)


def test_4_bit_weights_are_suggested_if_they_make_everything_fit() -> None:
    whole, packed = 1_543_714_304 * 2, ((1_543_714_304 - 151_936 * 1536) * 5 + 151_936 * 1536 * 8) // 8
    rest = RESERVE + QWEN_QUERIES + 2 * QWEN_SAMPLER + (4096 + 2 * 2048) * 28_672
    requested = {"slots": 2, "prompt_tokens": 4096}
    offer = f', or use weights="int4", which take {packed / 1e9:.3g} GB; then everything fits'
    for memory in (packed + rest, whole + rest - 1):
        with pytest.raises(DoesNotFit) as refused:
            resolved(QWEN, memory, **requested)
        assert str(refused.value).endswith(offer)
    assert resolved(QWEN, packed + rest, weights="int4", **requested).slots == 2
    for less in ({"memory": packed + rest - 1}, {"memory": packed + rest, "dtype": "float32"}):
        with pytest.raises(DoesNotFit) as refused:
            resolved(QWEN, **less, **requested)
        assert "int4" not in str(refused.value)


def test_the_prefix_store_is_counted_and_is_dropped_first_if_memory_is_short() -> None:
    weights, token = 134_515_008 * 2, 23_040
    memory = weights + RESERVE + SMOLLM2_QUERIES + SMOLLM2_SAMPLER + (8192 + 2048) * token
    assert resolved().store_bytes == 0
    assert resolved(prefix_store="1.5GB").store_bytes == 1_500_000_000
    assert resolved(prefix_store="auto", memory=memory + 10**9).store_bytes == 10**9
    short = resolved(prefix_store="auto", memory=memory + 9 * 10**8)
    assert (short.store_bytes, short.prompt_tokens) == (0, 8192)
    with pytest.raises(DoesNotFit, match=r"1,000 MB of prefix store.*lower prefix_store"):
        resolved(prefix_store="1GB", prompt_tokens=8192, memory=memory)


@pytest.mark.parametrize("store", [None, 0, "10MB"])
def test_turns_that_continue_need_room_for_a_slot_in_the_prefix_store(store: str | int | None) -> None:
    with pytest.raises(InvalidRequest, match=r"47\.2 MB for each conversation, and prefix_store is") as refused:
        resolved(kv_turns="continue", prefix_store=store)
    assert refused.value.param == "prefix_store"
    assert resolved(kv_turns="continue", prefix_store="auto").kv.turns == "continue"


def test_a_store_without_room_for_a_block_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"prefix_store is 1 MB, less than a block of 64 tokens, 1\.47 MB"):
        resolved(prefix_store="1MB")


def test_the_planned_cache_memory_is_what_an_engine_allocates(tmp_path: Path) -> None:
    tiny = pytest.importorskip("tests.engine.tiny", reason="transformers, which makes the tiny model, is missing")
    from ringkv.engine.build import build

    tiny.save(tmp_path, "Llama")
    config = tiny.config(tmp_path, lanes=2, slots=3, store_bytes=10**6)
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


def test_slots_whose_caches_fit_are_refused_if_their_sampler_state_does_not_fit() -> None:
    caches = 1_543_714_304 * 2 + RESERVE + QWEN_QUERIES + (2048 + 256 * 64) * 28_672
    requested = {"slots": 256, "kv_budget": 64, "prompt_tokens": 2048}
    with pytest.raises(DoesNotFit, match=r"and 8\.22 MB of sampler state"):
        resolved(QWEN, caches + 10**9, **requested)
    assert resolved(QWEN, caches + 256 * QWEN_SAMPLER, **requested).slots == 256


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({"kv_budget": 19, "kv_sinks": 4, "kv_recent": 16}, "kv_budget 19 .*4 sinks and 16 recent; raise it to 20"),
        ({"kv_budget": 4, "kv_policy": "streaming"}, "kv_budget 4 .*4 sinks and 1 recent; raise it to 5"),
        ({"kv_budget": 40, "kv_policy": "snapkv"}, "40 .*32 in its window and 10 for the output and 1 selected.* 43,"),
    ],
)
def test_a_budget_that_a_policy_cannot_work_with_is_refused(options: dict[str, Any], numbers: str) -> None:
    with pytest.raises(BudgetTooSmall, match=numbers):
        resolved(**options)
    assert resolved(**{**options, "kv_budget": options["kv_budget"] + 30}).capacity == options["kv_budget"] + 30


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"kv_policy": "h2o"}, "kv_policy", "full, streaming, snapkv, snapstream"),
        ({"kv_budget": 0}, "kv_budget", "at least 1"),
        ({"kv_budget": 512, "kv_compression": "4x"}, "kv_compression", "leave one out"),
        ({"kv_policy": "full", "kv_compression": "4x"}, "kv_compression", "keeps every token"),
        ({"kv_compression": "four"}, "kv_compression", "such as 4x"),
        ({"kv_recent": "100%"}, "kv_recent", "such as 25%"),
        ({"kv_sinks": -1}, "kv_sinks", "at least 0"),
        ({"kv_window": 0}, "kv_window", "at least 1"),
        ({"kv_kernel": 4}, "kv_kernel", "odd"),
        ({"kv_pooling": "sum"}, "kv_pooling", "avg, max"),
        ({"prompt_tokens": 9000}, "prompt_tokens", "8,192"),
        ({"prompt_tokens": 0}, "prompt_tokens", "at least 1"),
        ({"slots": 0}, "slots", "at least 1"),
        ({"lanes": 0}, "lanes", "at least 1"),
        ({"chunk": 0}, "chunk", "at least 1"),
        ({"threads": 0}, "threads", "at least 1"),
        ({"dtype": "int8"}, "dtype", "bfloat16"),
        ({"dtype": "float16"}, "dtype", "bfloat16 or float32"),
        ({"graphs": "yes"}, "graphs", "auto, compiled, background, off"),
        ({"expert_parallel": True}, "expert_parallel", "needs several ranks; set tensor_parallel, or leave it out"),
        ({"expert_parallel": True, "tensor_parallel": 3}, "expert_parallel", "no experts; leave it out"),
    ],
)
def test_an_invalid_option_is_refused_by_name(options: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as error:
        resolved(**options)
    assert error.value.param == param


def test_a_cpu_with_a_number_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="device 'cpu:0' is unknown; choose cpu, cuda"):
        resolved(device="cpu:0")


def test_graphs_are_compiled_if_they_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete, "missing_for_graphs", lambda: None)
    assert [resolved(graphs=one).graphs for one in (None, "auto", "compiled", "off")] == ["compiled"] * 3 + ["off"]
    assert resolved(graphs="background").graphs == "background"
    assert resolved(graphs="background", device="cuda:0").graphs == "compiled"


def test_without_a_compiler_graphs_are_off_and_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete, "missing_for_graphs", lambda: "no C++ compiler was found")
    assert resolved().graphs == resolved(graphs="background").graphs == "off"
    assert resolved(device="cuda:0").graphs == "compiled"  # captured by the driver, without a compiler
    for device in ("cpu", "cuda"):
        with pytest.raises(InvalidRequest, match=r"no C\+\+ compiler was found"):
            resolved(graphs="compiled", device=device)


def test_far_more_threads_than_cores_are_refused_with_the_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)))
    assert resolved(threads=24).threads == 24
    with pytest.raises(InvalidRequest, match="threads is 5,000; this process may use 6 cores, so give at most 24"):
        resolved(threads=5000)


def test_threads_are_the_usable_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete.os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert resolved().threads == 3


def test_drafts_are_counted_as_logits_and_temporaries() -> None:
    plain, drafting = (engine_footprint(SMOLLM2, resolved(speculate=drafts)) for drafts in (0, 3))
    assert drafting.sampler - plain.sampler == 3 * 49_152 * (4 + TEMPORARIES)


@pytest.mark.parametrize("drafts", [-1, 8])
def test_drafts_have_a_minimum_and_a_maximum(drafts: int) -> None:
    with pytest.raises(InvalidRequest, match="speculate"):
        resolved(speculate=drafts)


def test_slots_in_8_bits_take_a_byte_per_element_a_scale_per_vector_a_center_and_four_keys() -> None:
    plain, small = (engine_footprint(SMOLLM2, resolved(kv_format=one)) for one in (None, "int8"))
    vectors = 2048 * 30 * 3 * 2
    assert (plain.slot, small.slot) == (vectors * 64 * 2, vectors * (64 + 4) + 30 * 3 * 64 * 4 * (1 + 4))
    assert small.staging == plain.staging


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed (Linux only)")
def test_formats_with_kernels_are_accepted_on_a_gpu() -> None:
    from ringkv.kernels.gpu.forms import FORMS

    for kv_format in ("plain", *FORMS):
        assert resolved(kv_format=kv_format, device="cuda:0").kv_format == kv_format


@pytest.mark.parametrize(
    ("model", "kv_format", "said"),
    [
        (SMOLLM2, "turbo4", "turbo4 is not implemented on CUDA; choose one of plain, int8, fp8, int4"),
        (SMOLLM2, "zipcache", "zipcache is not implemented on CUDA; choose one of plain, int8, fp8, int4"),
        (DEEPSEEK, "int8", "int8 is not implemented for latents on CUDA; choose plain"),
    ],
)
def test_formats_without_kernels_are_refused_on_a_gpu(model: ModelConfig, kv_format: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as raised:
        resolved(model, kv_format=kv_format, device="cuda:0")
    assert raised.value.param == "kv_format"


@pytest.mark.parametrize(
    ("kv_format", "skip"),
    [*[(one, 0) for one in ("plain", "int8", "fp8")], *[(one, 2) for one in ("int4", "turbo4", "zipcache")]],
)
def test_layers_at_the_ends_stay_plain_with_4_bits_unless_a_number_is_given(kv_format: PlaneFormat, skip: int) -> None:
    assert resolved(kv_format=kv_format).kv_format_skip == skip
    if kv_format != "plain":
        assert resolved(kv_format=kv_format, kv_format_skip=3).slot_format == (kv_format, 3)
    with pytest.raises(InvalidRequest, match="-1; it must be at least 0"):
        resolved(kv_format=kv_format, kv_format_skip=-1)


def both(memory: int, **options: Any) -> list[EngineConfig]:
    wanted = [Wanted(Path("models") / name, model, Options(**options)) for name, model in MODELS.items()]
    return resolve_all(wanted, memory)


MODELS = {"small": SMOLLM2, "large": QWEN}


def needs(engines: list[EngineConfig]) -> list[int]:
    return [
        engine_footprint(model, engine).total(engine.slots)
        for model, engine in zip(MODELS.values(), engines, strict=True)
    ]


def test_models_of_one_server_are_planned_as_alone_if_they_fit_together() -> None:
    small, large = both(PLENTY, slots=4)
    assert replace(small, threads=1) == replace(
        resolve(Path("models/small"), SMOLLM2, Options(slots=4), PLENTY), threads=1
    )
    assert (large.slots, large.prompt_tokens) == (4, 32_768)
    assert sum(needs([small, large])) == sum(needs(both(sum(needs([small, large])), slots=4)))


def test_the_model_that_needs_most_is_made_smaller_first() -> None:
    wanted = both(PLENTY, prefix_store="auto")
    small, large = both(sum(needs(wanted)) - 1, prefix_store="auto")
    assert (small, large.store_bytes, large.prompt_tokens) == (wanted[0], 0, 32_768)


@given(memory=st.integers(5 * 10**9, 12 * 10**9))
def test_models_that_are_planned_together_fit_together_or_are_refused(memory: int) -> None:
    try:
        assert sum(needs(both(memory, prefix_store="auto"))) <= memory
    except DoesNotFit:
        assert sum(needs(both(PLENTY, prompt_tokens=2048))) > memory


def test_models_that_do_not_fit_together_are_refused_with_what_each_needs() -> None:
    with pytest.raises(
        DoesNotFit, match=r"2 models need .* \(small .*, large .*\), and 1 GB are available; serve fewer"
    ):
        both(10**9)


def test_models_of_one_server_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "default_threads", lambda: 7)
    assert [engine.threads for engine in both(PLENTY)] == [3, 3]
    assert [engine.threads for engine in both(PLENTY, threads=5)] == [5, 5]
    monkeypatch.setattr(module, "default_threads", lambda: 1)
    assert [engine.threads for engine in both(PLENTY)] == [1, 1]


def test_ranks_have_whole_experts_if_that_is_requested() -> None:
    mixtral = parse_config(dict(configurations()["mixtral-8x7b"]))
    split, whole = (resolved(mixtral, 10**13, tensor_parallel=4, expert_parallel=one) for one in (None, True))
    assert (split.rank, whole.rank) == (Rank(0, 4), Rank(0, 4, expert_parallel=True))
    assert whole.rank.largest == Rank(3, 4, expert_parallel=True)


@pytest.mark.parametrize(
    ("slots", "ranks", "requested", "found"),
    [
        (8, 4, None, (8, "slots")),
        (10, 4, None, (12, "slots")),  # each rank has as many
        (3, 4, None, (3, "heads")),  # a rank would have none
        (8, 1, None, (8, "heads")),
        (8, 4, "heads", (8, "heads")),
        (3, 4, "slots", (4, "slots")),
    ],
)
def test_ranks_divide_the_slots_of_latents_if_each_gets_one(
    slots: int, ranks: int, requested: str | None, found: tuple[int, str]
) -> None:
    engine = resolved(DEEPSEEK, slots=slots, tensor_parallel=ranks, attention_parallel=requested)
    assert (engine.slots, engine.attention_parallel) == found


def test_ranks_divide_the_heads_of_models_without_latents() -> None:
    assert resolved(slots=3, tensor_parallel=3).attention_parallel == "heads"
    with pytest.raises(InvalidRequest, match="attention_parallel slots is for latent attention"):
        resolved(slots=3, tensor_parallel=3, attention_parallel="slots")
    with pytest.raises(InvalidRequest, match="it must be one of heads, slots"):
        resolved(attention_parallel="rows")


def test_ranks_that_divide_the_slots_of_latents_need_their_entries_once() -> None:
    slots, heads = (
        engine_footprint(DEEPSEEK, resolved(DEEPSEEK, slots=8, tensor_parallel=4, attention_parallel=one))
        for one in ("slots", "heads")
    )
    entries = 27 * 2048 * (512 + 64) * 2  # of one slot
    assert (slots.entries(8), heads.entries(8)) == (8 * entries, 4 * 8 * entries)
    assert heads.total(8) - slots.total(8) == 3 * 8 * entries
    assert slots.slots_in(slots.total(8)) == 8
    with pytest.raises(DoesNotFit, match=r"8 slots of 2,048 entries \(63.7 MB each"):
        resolved(DEEPSEEK, slots.total(0), slots=8, tensor_parallel=4, prompt_tokens=32768)
