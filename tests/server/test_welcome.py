import re
from dataclasses import replace
from unittest.mock import Mock

import pytest
from toy import ToyEngine, limits

from ringkv.base.engine import Limits, RankBytes
from ringkv.base.kv import KVChoice
from ringkv.plan.units import parse_bytes
from ringkv.server.run.serving import LoadedModel
from ringkv.server.welcome import show_cache, welcome
from tests.server.echo import InProcess

LIMITS = limits(
    slots=2,
    capacity=512,
    entry_bytes=1000,
    held_bytes=2 * 512_000 + 3_000_000 + 1_000_000_000,
    staging_bytes=3_000_000,
    sampler_bytes=2_500_000,
)


def test_the_parts_of_the_cache_are_its_slots_staging_and_store() -> None:
    assert show_cache(LIMITS) == (
        "1 GB reserved: 1.02 MB in 2 slots of 512 entries, 3 MB in staging, 1 GB in the prefix store"
    )


def test_the_slots_of_a_rank_are_counted_if_ranks_divide_them() -> None:
    first = replace(LIMITS, slots=8, slot_ranks=4)
    assert "1.02 MB in 2 of 8 slots of 512 entries, 3 MB in staging, 1 GB in the prefix store" in show_cache(first)


def test_the_memory_of_all_ranks_is_named_before_that_of_the_first() -> None:
    ranks = replace(LIMITS, rank_bytes=(RankBytes(10**9, 512_000), RankBytes(2 * 10**9, 1_024_000)))
    assert show_cache(ranks).startswith("3 GB on 2 ranks; on the first, 1 GB reserved: 1.02 MB in 2 slots")


def test_a_format_of_slots_is_named_if_it_is_not_plain() -> None:
    assert "1.02 MB in 2 slots of 512 entries in int4, 3 MB in staging" in show_cache(replace(LIMITS, kv_format="int4"))


def test_the_parts_add_up_to_the_total() -> None:
    total, *parts = (parse_bytes(found) for found in re.findall(r"[0-9.]+ [kMG]?B", show_cache(LIMITS)))
    assert abs(total - sum(parts)) < 0.01 * total


def toy(name: str, limits: Limits = LIMITS) -> LoadedModel:
    return LoadedModel(InProcess(ToyEngine(limits)), Mock(), None, (name,))


def test_the_text_has_the_address_the_samplers_memory_and_how_to_stop() -> None:
    lines = welcome([toy("toy")], ("127.0.0.1", 80)).splitlines()
    assert lines[0] == "toy is served at http://127.0.0.1:80/v1"
    assert "sampler: 2.5 MB besides the cache, for logits and penalties" in lines
    assert "stop: Ctrl-C" in lines
    assert not any(line.startswith("workspace") for line in lines)


def test_the_text_says_why_a_policy_was_chosen() -> None:
    plain, auto = toy("toy"), replace(toy("toy"), kv_why="every token fits")
    lines = [welcome([one], ("127.0.0.1", 80)).splitlines()[2] for one in (plain, auto)]
    assert lines == ["policy: streaming, budget 512", "policy: streaming, budget 512 (auto: every token fits)"]


@pytest.mark.parametrize(
    ("budget", "read"),
    [(256, 256), (250, 224), (8, 128)],
    ids=["whole pages", "rounded down", "at least the sinks' page, two newest ones and another"],
)
def test_the_text_says_how_many_entries_a_step_reads_in_pages(budget: int, read: int) -> None:
    paged = toy("toy", replace(LIMITS, page=32, capacity=512))
    paged.engine.default_kv = KVChoice("arkvale", budget=budget)
    line = welcome([paged], ("127.0.0.1", 80)).splitlines()[2]
    assert line == f"policy: arkvale, budget {budget}: a step reads {read} of a slot's 512 entries"


def test_the_text_names_the_directory_and_the_space_of_files_that_hold_entries() -> None:
    tiered = replace(LIMITS, tier="/var/tmp", tier_bytes=189_000_000)
    line = "files: 378 MB on disk in /var/tmp, 189 MB per slot"
    assert line in welcome([toy("toy", tiered)], ("127.0.0.1", 80)).splitlines()
    ranks = replace(tiered, rank_bytes=(RankBytes(10**9, 512_000),) * 2)
    assert f"{line[:33]} of the first of 2 ranks{line[33:]}" in welcome([toy("toy", ranks)], ("127.0.0.1", 80))
    assert "files:" not in welcome([toy("toy")], ("127.0.0.1", 80))


def test_the_text_says_how_much_of_the_hosts_memory_holds_entries_beside_a_gpu() -> None:
    tiered = replace(LIMITS, tier="memory", tier_bytes=189_000_000)
    assert "host: 378 MB of pinned memory, 189 MB per slot" in welcome([toy("toy", tiered)], ("127.0.0.1", 80))


def test_the_text_says_which_prompts_are_compressed_while_they_are_prefilled() -> None:
    text = welcome([toy("toy", replace(LIMITS, prefill_workspace=256))], ("127.0.0.1", 80))
    assert "workspace: prompts over 256 tokens are compressed while prefilled, to 256 entries at most" in text
