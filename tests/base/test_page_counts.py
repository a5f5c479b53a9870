import pytest

from ringkv.base.events import PageUsage
from ringkv.base.kv import KVChoice, Layout
from ringkv.base.page_counts import PageCounts, entries_read, most_read, page_usage, resident_pages
from ringkv.cache.layouts import layout


def arkvale(prompt: int, budget: int | None = 96) -> Layout:
    return layout(KVChoice("arkvale", budget=budget, sinks=4, recent=16), prompt, 320)


@pytest.mark.parametrize(
    ("prompt", "budget", "fed"), [(3, 96, 0), (31, 96, 2), (90, 96, 57), (200, 64, 120), (1, 320, 319)]
)
@pytest.mark.parametrize("page", [16, 32])
def test_pages_that_steps_read_equal_those_counted_step_by_step(prompt: int, budget: int, fed: int, page: int) -> None:
    own, read, skipped = arkvale(prompt, budget), 0, 0
    counts = PageCounts.of(own, page)
    assert counts is not None
    for length in range(prompt + 1, prompt + fed + 1):
        filled = len({entry // page for entry in range(length)})
        read += min(filled, counts.most)
        skipped += max(0, filled - counts.most)
    held = len({entry // page for entry in range(prompt + fed)})
    assert page_usage(own, page, fed) == PageUsage(held, held, counts.most, read, skipped)
    assert page_usage(own, page, fed, resident=4) == PageUsage(held, min(held, 4), counts.most, read, skipped)


def test_a_slot_without_pages_and_a_policy_that_reads_everything_have_no_counts() -> None:
    assert page_usage(arkvale(50), page=0, fed=4) is None
    assert page_usage(layout(KVChoice("snapstream", budget=64), 50, 320), page=32, fed=4) is None


@pytest.mark.parametrize("page", [16, 32])
@pytest.mark.parametrize("kv", [KVChoice("arkvale", budget=96), KVChoice("arkvale", budget=300, recent=40)])
def test_twice_the_pages_that_a_step_reads_stay_on_a_gpu(kv: KVChoice, page: int) -> None:
    counts = PageCounts.of(layout(kv, 200, 320), page)
    assert counts is not None
    assert resident_pages(kv, 4096, page) == 2 * counts.most
    assert resident_pages(kv, 5 * page, page) == 5
    assert most_read(layout(kv, 200, 320), page) == min(counts.most, 320 // page)


@pytest.mark.parametrize(
    ("choice", "page", "read"),
    [
        (KVChoice("arkvale", budget=256), 16, 256),
        (KVChoice("arkvale", budget=64, sinks=4, recent=16), 32, 4 * 32),  # the first, two newest and one selected
        (KVChoice("arkvale", budget=4000), 32, 1000),
        (KVChoice("snapstream", budget=64), 32, 64),
        (KVChoice("full"), 0, 1000),
    ],
)
def test_entries_that_a_step_reads(choice: KVChoice, page: int, read: int) -> None:
    assert entries_read(choice, 1000, page) == read
