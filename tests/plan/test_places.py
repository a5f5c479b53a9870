"""What lies on a GPU and what on its host, and what is refused if one of them is too small."""

from pathlib import Path
from typing import Any

import pytest

from ringkv.base.config import EngineConfig
from ringkv.base.errors import DoesNotFit
from ringkv.plan.engine_footprint import GPU_RESERVE, RESERVE
from ringkv.plan.footprint import sampler_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import Wanted, resolve, resolve_all
from tests.plan.models import LLAMA_8B, SMOLLM2

PLENTY = 10**14
MODEL = Path("models/llama")
TOKEN, SAMPLER = 131_072, sampler_bytes(128_256)  # bytes of a token of Llama-3.1-8B, and of a slot's sampler
QUERIES = 32 * 32 * 32 * 128 * 2
WEIGHTS = 2 * 8_030_261_248


def on_gpu(device_bytes: int, memory: int = PLENTY, **options: Any) -> EngineConfig:
    return resolve(MODEL, LLAMA_8B, Options(device="cuda:0", **options), memory, device_bytes)


def device_need(slots: int, prompt: int) -> int:
    """Weights, staging, slots of 2,048 entries, and the reserve."""
    return WEIGHTS + prompt * TOKEN + QUERIES + slots * (2048 * TOKEN + SAMPLER) + GPU_RESERVE


def test_an_engine_on_a_gpu_fits_to_the_byte_in_the_devices_memory() -> None:
    assert on_gpu(device_need(4, 32_768), slots=4, prompt_tokens=32_768).slots == 4
    with pytest.raises(DoesNotFit, match=r"23\.\d GB on cuda:0.* 3 slots"):
        on_gpu(device_need(4, 32_768) - 1, slots=4, prompt_tokens=32_768)


def test_a_hosts_memory_need_not_hold_what_lies_on_the_gpu() -> None:
    assert on_gpu(PLENTY, RESERVE, slots=64).slots == 64
    with pytest.raises(DoesNotFit, match=r"1\.07 GB of reserve .*host"):
        on_gpu(PLENTY, RESERVE - 1)


def test_a_prompt_limit_left_open_is_halved_until_it_fits_on_the_gpu_and_the_store_stays() -> None:
    engine = on_gpu(device_need(1, 8192), prefix_store="auto")
    assert (engine.prompt_tokens, engine.store_bytes) == (8192, 10**9)
    assert on_gpu(device_need(1, 8192) - 1).prompt_tokens == 4096


def test_the_prefix_store_is_pinned_in_host_memory_rounded_up_to_powers_of_two() -> None:
    pinned = 2 * (1 << 29)  # keys and values, less than 500 MB each
    assert on_gpu(PLENTY, RESERVE + pinned, prefix_store="1GB").store_bytes == 10**9
    with pytest.raises(DoesNotFit, match=r"1\.07 GB of prefix store .*host"):
        on_gpu(PLENTY, RESERVE + pinned - 1, prefix_store="1GB")
    dropped = on_gpu(PLENTY, RESERVE + pinned - 1, prefix_store="auto")
    assert (dropped.store_bytes, dropped.prompt_tokens) == (0, 32_768)


def test_models_on_one_gpu_share_its_memory() -> None:
    options = Options(device="cuda", slots=1, prompt_tokens=2048)
    wanted = [Wanted(Path("a"), LLAMA_8B, options), Wanted(Path("b"), LLAMA_8B, options)]
    assert len(resolve_all(wanted, PLENTY, 2 * device_need(1, 2048))) == 2
    with pytest.raises(DoesNotFit, match=r"37\.\d GB \(a 18\.\d GB, b 18\.\d GB\) on cuda"):
        resolve_all(wanted, PLENTY, 2 * device_need(1, 2048) - 1)


def test_on_a_cpu_everything_lies_in_host_memory() -> None:
    with pytest.raises(DoesNotFit, match=r"weights.* 1\.07 GB"):
        resolve(Path("m"), SMOLLM2, Options(), RESERVE + 1, device_bytes=PLENTY)


def test_slots_whose_pages_are_recalled_fit_to_the_byte_on_the_gpu_and_in_its_hosts_memory() -> None:
    """A step reads 64 pages of 32, and 128 are on the GPU; digests take two vectors for each of 1,056 pages."""
    chosen = {"kv_policy": "arkvale", "kv_tier": "memory", "slots": 4, "prompt_tokens": 32_768}
    entries, layers, heads = 32_768 + 1024, 32, 8
    maps = 4 * (2 * entries // 32 + 128 + 1)  # with a pin for each page
    slot = 128 * 32 * TOKEN + entries // 32 * TOKEN + layers * (heads * maps + 12)
    device = device_need(0, 32_768) + 4 * (slot + SAMPLER)
    host = RESERVE + 4 * entries * TOKEN
    found = on_gpu(device, host, **chosen)
    assert (found.capacity, found.resident_pages, found.tier) == (entries, 128, "memory")
    with pytest.raises(DoesNotFit, match=r"cuda:0.* 3 slots"):
        on_gpu(device - 1, host, **chosen)
    with pytest.raises(DoesNotFit, match=r"33,792 entries \(4\.\d+ GB .* 3 slots"):
        on_gpu(device, host - 1, **chosen)
    with pytest.raises(DoesNotFit, match=r"prompt_tokens.* kv_tier"):
        on_gpu(device, RESERVE + 1, **chosen)


def test_a_prompt_limit_left_open_is_halved_until_its_slots_fit_in_the_hosts_memory() -> None:
    memory = RESERVE + (16_384 + 1024) * TOKEN
    assert on_gpu(PLENTY, memory, kv_policy="arkvale", kv_tier="memory").prompt_tokens == 16_384


def test_without_a_tier_all_pages_are_on_the_gpu() -> None:
    found = on_gpu(PLENTY, kv_policy="arkvale")
    assert (found.resident_pages, found.tier) == (None, "")
    on_cpu = resolve(MODEL, LLAMA_8B, Options(kv_policy="arkvale", kv_tier="memory"), PLENTY)
    assert (on_cpu.resident_pages, on_cpu.tier) == (None, "")
