"""Figures worked by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from ringkv.models.config import load_config
from ringkv.plan.complete import complete
from ringkv.plan.engine_footprint import engine_footprint
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from tests import chat_model
from tests.cli.conftest import Cli


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model.save(tmp_path_factory.mktemp("long"), max_position_embeddings=4096)


def test_the_table_has_the_bytes_of_a_token_and_the_slots_that_fit(cli: Cli) -> None:
    machine = ("--memory", "80GB", "--reserve", "0")
    result = cli("plan", "--model", "llama-3.1-8b", *machine, "--tokens", "128k", "--kv-budget", "2048")
    rows = {line.split()[0]: line.split()[1:] for line in result.out.splitlines() if line}
    assert result.status == 0
    assert rows["per"][1] == "131,072"
    assert rows["full"][:4] == ["131,072", "17.2", "GB", "2"]
    assert rows["compressed"][:4] == ["2,048", "268", "MB", "169"]
    assert rows["sampler,"][2:] == ["6,941,856", "6.94", "MB"]


def test_a_plan_without_a_model_names_the_one_that_it_is_of(cli: Cli) -> None:
    sentence = "No model was named; this is the plan of smollm2, the default."
    unnamed, named = cli("plan"), cli("plan", "--model", "smollm2")
    assert unnamed.out == f"{sentence}\n\n{named.out}"
    assert cli("plan", "--json").out == cli("plan", "--model", "smollm2", "--json").out


def test_a_plan_says_up_to_how_many_slots_auto_keeps_every_token(cli: Cli) -> None:
    arguments = ("plan", "--model", "llama-3.1-8b", "--reserve", "0", "--tokens", "128k", "--memory")
    assert (
        "--kv-policy auto keeps every token with up to 2 slots, and evicts with more\n" in cli(*arguments, "80GB").out
    )
    assert "--kv-policy auto evicts\n" in cli(*arguments, "40GB").out
    assert "policy auto" not in cli(*arguments, "80GB", "--kv-policy", "arkvale").out
    assert "policy auto" not in cli(*arguments, "16GB").out


def test_a_plan_reserves_what_a_server_does(cli: Cli, model_dir: Path) -> None:
    """A slot fits beside an engine's own reserve, and with a byte less it does not."""
    config = load_config(model_dir)
    engine = complete(model_dir, config, Options(slots=1))
    reserve = engine_footprint(config, engine).reserve
    arguments = ("plan", "--model", model_dir, "--json", "--memory")
    found = json.loads(cli(*arguments, "80GB").out)
    fixed = found["weight_bytes"] + found["staging_bytes"] + reserve
    slot = found["rows"][0]["slot_bytes"] + found["sampler_bytes"]
    assert [json.loads(cli(*arguments, fixed + slot - less).out)["rows"][0]["slots"] for less in (0, 1)] == [1, 0]
    assert "; --reserve takes 1.07 GB" in cli(*arguments[:3], "--memory", fixed).out


@pytest.mark.parametrize(
    "options",
    [
        {"kv_window": 8, "lanes": 3},
        {"prompt_tokens": 900},
        {"prefill_workspace": 1500, "prompt_tokens": 4000},
        {"kv_policy": "arkvale", "kv_page": 16, "prompt_tokens": 1000},
        {"kv_policy": "arkvale", "kv_tier": "/tmp"},
        {"kv_policy": "scissorhands", "kv_review": 17},
        {"kv_heads": "global"},
        {"kv_format": "int8", "dtype": "float32"},
    ],
)
def test_a_plan_has_the_bytes_that_a_server_allocates(options: dict[str, Any], cli: Cli, long: Path) -> None:
    build = pytest.importorskip("ringkv.engine.build").build
    options = {"kv_budget": 192, "prompt_tokens": 3072, **options}
    engine = resolve(long, load_config(long), Options(graphs="off", **options), 10**10)
    limits, longest = build(engine).limits, options.pop("prompt_tokens")
    flags = {"tokens": min(longest + 1024, 4096), "max-prompt": longest, **options}
    arguments = (f"--{name.replace('_', '-')}={value}" for name, value in flags.items())
    found = json.loads(cli("plan", "--model", long, "--json", *arguments).out)
    row, beside = found["rows"][1], found["weight_bytes"] + found["reserve"] + found["sampler_bytes"]
    assert (row["slot_bytes"], row["entries"]) == (limits.slot_bytes, limits.capacity)
    assert (found["staging_bytes"], row["total_bytes"] - beside) == (limits.staging_bytes, limits.held_bytes)


def test_pages_in_files_take_their_digests_from_memory_and_a_step_reads_the_budget(cli: Cli) -> None:
    """SmolLM2: 30 layers, 3 heads of 64; a page of 32 entries has a digest of two vectors and a pin."""
    arguments = ("plan", "--tokens", "8k", "--kv-budget", "2048", "--kv-policy", "arkvale")
    memory, disk = (json.loads(cli(*arguments, *tier, "--json").out)["rows"][1] for tier in ((), ("--kv-tier", ".")))
    token, digests = 23_040, 30 * (8192 // 32 * 3 * (2 * 64 * 2 + 4) + 12)
    assert (memory["slot_bytes"], memory["file_bytes"]) == (8192 * token + digests, 0)
    assert (disk["slot_bytes"], disk["file_bytes"]) == (digests, 8192 * token)
    assert memory["step_bytes"] == disk["step_bytes"] == 134_515_008 * 2 + 2048 * token + digests
    assert "189 MB" in next(line for line in cli(*arguments, "--kv-tier", ".").out.splitlines() if "arkvale" in line)


def test_pages_in_a_gpus_host_leave_places_digests_and_maps_on_the_gpu(cli: Cli) -> None:
    """A step reads 64 pages and 128 are on the GPU, of 256. Each of 90 heads has their places and a counter."""
    arguments = ("plan", "--tokens", "8k", "--kv-policy", "arkvale", "--kv-tier", "memory", "--device", "cuda")
    found = json.loads(cli(*arguments, "--json").out)["rows"][1]
    token, digests, maps = 23_040, 30 * (8192 // 32 * 3 * (2 * 64 * 2 + 4) + 12), 90 * 4 * (256 + 128 + 1)
    assert (found["slot_bytes"], found["host_bytes"]) == (128 * 32 * token + digests + maps, 8192 * token)
    text = cli(*arguments).out
    assert "in host memory per slot" in text
    assert "189 MB" in next(line for line in text.splitlines() if "arkvale" in line)


def test_json_has_the_same_in_bytes(cli: Cli) -> None:
    found = json.loads(cli("plan", "--model", "deepseek-r1", "--tp", "16", "--tokens", "128k", "--json").out)
    assert found["token_bytes"] == 70_272
    assert [row["slot_bytes"] for row in found["rows"]] == [70_272 * 131_072, 70_272 * 2048]


def test_slots_in_8_bits_are_named_and_counted(cli: Cli) -> None:
    arguments = ("plan", "--model", "llama-3.1-8b", "--kv-format", "int8")
    assert "cache in bfloat16, slots in int8\n" in cli(*arguments).out
    found = json.loads(cli(*arguments, "--json").out)
    assert found["rows"][1]["slot_bytes"] == 32 * 8 * (2 * 2048 * (128 + 4) + 4 * 128 * (1 + 4))


def test_compression_divides_the_longest_request(cli: Cli) -> None:
    found = json.loads(cli("plan", "--tokens", "8k", "--kv-compression", "4x", "--json").out)
    assert [row["entries"] for row in found["rows"]] == [8192, 2048]


def test_a_bandwidth_gives_the_floor_of_a_step(cli: Cli) -> None:
    result = cli("plan", "--model", "llama-3.1-8b", "--tokens", "1k", "--bandwidth", "1TB")
    milliseconds = (7_504_924_672 * 2 + 1024 * 131_072) / 1e12 * 1000
    assert f"{milliseconds:.3g} ms" in result.out


def test_weights_too_large_for_the_memory_are_reported(cli: Cli) -> None:
    result = cli("plan", "--model", "llama-3.1-70b", "--memory", "80GB").out
    assert "no slot fits in 80 GB: the weights alone take 141 GB; choose --weights int8 (70.6 GB) or" in result
    assert "or --weights int4 (44.9 GB); --reserve takes" in result
    result = cli("plan", "--model", "llama-3.1-8b", "--memory", "32GB").out
    assert "no slot fits in 32 GB: weights and staging alone take 33.2 GB; lower --tokens; --reserve" in result


def test_the_bytes_of_a_server_are_named_if_weights_are_counted_in_another_type(cli: Cli) -> None:
    """DeepSeek-R1: 671.03 billion elements; 16 ranks hold 2 bytes or 1 byte of each, over 16."""
    line = "float8 is for arithmetic; `ringkv serve --weights` holds bf16 83.9 GB, int8 41.9 GB, int4 "
    assert line in cli("plan", "--model", "deepseek-r1", "--tp", "16").out
    assert (
        "is for arithmetic" not in cli("plan", "--model", "llama-3.1-8b", "--weights", "int4", "--kv-budget", "2k").out
    )


@pytest.mark.parametrize(("model", "memory"), [("qwen3-8b", "24GB"), ("llama-3.1-70b", "80GB")])
def test_a_plan_ends_with_commands_that_give_more_slots_and_each_gives_what_it_says(
    model: str, memory: str, cli: Cli
) -> None:
    arguments = ("plan", model, "--memory", memory, "--kv-budget", "2k")
    before = json.loads(cli(*arguments, "--json").out)["rows"][-1]["slots"]
    advice = cli(*arguments).out.partition("more slots with a compressed cache (--memory is that of each rank):\n")[2]
    assert len(advice.splitlines()) > 1
    for line in advice.splitlines():
        slots, program, *command = line.split()
        assert (program, command[:2]) == ("ringkv", ["plan", model])
        after = json.loads(cli(*command, "--json").out)["rows"][-1]["slots"]
        assert int(slots.replace(",", "")) == after > before


def test_advice_names_more_ranks_and_a_memory_if_nothing_fits(cli: Cli) -> None:
    out = cli("plan", "deepseek-r1", "--memory", "80GB").out
    assert "ringkv plan deepseek-r1 --tensor-parallel 16 --memory 80GB" in out
    assert [cli("plan", "deepseek-r1", "--tp", ranks, "--memory", "80GB").status for ranks in (8, 16)] == [1, 0]
    needed = json.loads(cli("plan", "deepseek-r1", "--json").out)["rows"][-1]["total_bytes"]
    given = float(out.split("ringkv plan deepseek-r1 --memory ")[1].removesuffix("GB\n")) * 1e9
    assert needed <= given <= 1.01 * needed


def test_what_is_set_is_not_advised(cli: Cli) -> None:
    flags = ("--weights", "int4", "--kv-format", "int4", "--prefill-workspace", "8k", "--memory", "24GB")
    (line,) = cli("plan", "qwen3-8b", *flags).out.partition("of each rank):\n")[2].splitlines()
    assert "--tensor-parallel 2" in line


def test_without_a_memory_there_is_no_advice(cli: Cli) -> None:
    assert "more slots" not in cli("plan", "qwen3-8b").out


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize(
    ("tokens", "memory", "status"),
    [("128k", "10GB", 1), ("128k", "32GB", 1), ("128k", "34GB", 0), ("128k", "80GB", 0)],
)
def test_a_plan_under_which_nothing_fits_fails(
    form: tuple[str, ...], tokens: str, memory: str, status: int, cli: Cli
) -> None:
    machine = ("--memory", memory, "--reserve", "0")
    result = cli("plan", "--model", "llama-3.1-8b", "--tokens", tokens, *machine, *form)
    assert result.status == status
    assert result.out


def test_ranks_of_deepseek_r1_are_planned_beside_the_papers_deployment(cli: Cli) -> None:
    """Weights of 671 GB / 16; 70,272 bytes a token, of one staged prompt and of each slot of a rank.

    The last 32 queries of 8 heads, in 61 layers of 576 elements, take 18 MB of the staging.
    """
    machine = ("--tp", "16", "--memory", "64GB", "--reserve", "1GiB")
    lines = [line.split() for line in cli("plan", "--model", "deepseek-r1", *machine).out.splitlines()]
    full, quarter = (line for line in lines if line[:1] == ["131,072"])
    assert full == ["131,072", "131,072", "41.9", "GB", "9.23", "GB", "9.21", "GB", "16", "16", "434"]
    assert quarter == ["131,072", "32,768", "41.9", "GB", "9.23", "GB", "2.3", "GB", "64", "64", "1,832"]


def test_experts_of_ranks_are_planned_whole_and_divided(cli: Cli) -> None:
    """Mixtral: a slot reads 2 of 8 experts, of 32 x 3 x 4,096 x 14,336 elements; 4 ranks have 2 each.

    Both experts of the busiest are read with probability 1 - (15/16)^4, at least one with 1 - (9/16)^4.
    """
    out = cli("plan", "--model", "mixtral-8x7b", "--tp", "4").out
    rows = {line.split("  ")[0]: line.split()[2:] for line in out.splitlines() if "parallel" in line}
    assert rows["tensor parallel"] == ["22.5", "GB", "5.64", "GB", "16.4", "kB"]
    assert rows["expert parallel, busiest"][1:5] == ["22.5", "GB", "12.7", "GB"]
    assert "experts of a rank" not in cli("plan", "--model", "mixtral-8x7b").out
    assert "experts of a rank" not in cli("plan", "--model", "llama-3.1-8b", "--tp", "4").out


def test_experts_of_one_process_are_planned_too(cli: Cli) -> None:
    """Mixtral: 90.2 GB of experts in bfloat16; one slot reads a quarter of them."""
    rows = [line.split() for line in cli("plan", "--model", "mixtral-8x7b", "--tokens", "4k").out.splitlines()]
    assert ["experts", "90.2", "GB", "22.5", "GB"] in rows
    assert "experts" not in cli("plan", "--model", "llama-3.1-8b").out


def test_a_plan_without_a_memory_cannot_fail(cli: Cli) -> None:
    assert cli("plan", "--model", "llama-3.1-70b").status == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--model", "nope"],
            "no model is known as 'nope'; nope is not supported, or its sizes are not known; give a directory with",
        ),
        (["--memory", "lots"], "--memory is 'lots'; write bytes such as"),
        (["--tokens", "many"], "invalid value for '--tokens': give a whole number, such as"),
        (["--tokens", "9k"], "--tokens is 9,216; it must be at most 8,192, the context of smollm2"),
        (["--kv-budget", "0"], "--kv-budget is 0; it must be at least 1"),
        (["--kv-budget", "9", "--kv-compression", "4"], "--kv-budget 9 and --kv-compression 4 both set the budget"),
        (["--tp", "4"], "3 key-value heads cannot be divided over 4 ranks; use at most 3, or a multiple"),
        (["--dtype", "int3"], "--dtype is 'int3'; it must be one of"),
        (["--weights", "mxfp4"], "--weights is 'mxfp4'; it must be one of bf16, int8, int4, float32"),
        (["--prefill-workspace", "10"], "--prefill-workspace is 10; it must be at least 1,024, because prompts are"),
        (["--prefill-workspace", "2k", "--kv-policy", "arkvale"], "--kv-policy arkvale is not possible with"),
        (
            ["--kv-policy", "scissorhands", "--kv-budget", "40"],
            "--kv-budget 40 is less than 4 sinks and 10 recent and 32 free",
        ),
        (["--kv-heads", "global", "--tp", "3"], "--kv-heads global is not implemented with --tensor-parallel 3"),
        (["--kv-page", "16"], "--kv-page 16 is for --kv-policy arkvale, and it is snapstream"),
        (["--chunk", "0"], "--chunk is 0; it must be at least 1"),
        (["--kv-format", "fp8"], "--kv-format fp8 was removed; choose int8, which"),
        (["--kv-format", "int3"], "--kv-format is 'int3'; it must be one of plain, int8"),
    ],
)
def test_what_cannot_be_planned_is_refused(arguments: list[str], message: str, cli: Cli) -> None:
    result = cli("plan", *arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"ringkv: {message}")


def test_a_gpu_keeps_more_free_than_a_host(cli: Cli) -> None:
    found = [
        json.loads(cli("plan", "--memory", "20GB", *device, "--json").out) for device in ((), ("--device", "cuda"))
    ]
    assert [one["reserve"] for one in found] == [1 << 30, 2 << 30]
