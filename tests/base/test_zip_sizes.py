"""Sizes of zipcache's slots, beside the accounting of its paper."""

import pytest

from ringkv.base.zip_sizes import CHUNK, ZipSizes, chunk_bytes, entry_bytes, salient_of

GROUPED = 8 * 128  # channels of keys in Mistral-7B and Llama-3-8B: heads times their width


def paper(share: float, channels: int, tokens: int, requests: int = 8) -> float:
    """Return 16-bit bits over those of arXiv 2405.14256, appendix A, with salient and other tokens apart.

    A scale and a zero point per channel of keys and a factor per channel of values, for each of both, shared by all
    requests; a scale and a zero point per token of values.
    """
    elements = 2 * requests * channels * tokens
    codes = elements * (4 * share + 2 * (1 - share))
    parameters = 16 * (2 * 3 * channels + 2 * requests * tokens)
    return 16 * elements / (codes + parameters)


@pytest.mark.parametrize(
    ("share", "least", "most"), [(0.6, 4.965, 4.995), (0.7, 4.675, 4.705)], ids=["4.97-4.99", "4.68-4.70"]
)
@pytest.mark.parametrize(("channels", "tokens"), [(4096, 4096), (GROUPED, 4096), (GROUPED, 2048)])
def test_the_papers_accounting_gives_its_ratios(
    share: float, least: float, most: float, channels: int, tokens: int
) -> None:
    assert least < paper(share, channels, tokens) < most


def ratio(width: int, tokens: int) -> float:
    """Return 16-bit bytes over ours, of one head's chunk."""
    return 2 * 2 * width * tokens / chunk_bytes(width, tokens)


@pytest.mark.parametrize(("width", "tokens", "expected"), [(128, 4096, 4.80), (64, 4096, 4.62), (128, 100, 4.30)])
def test_ours_is_less_because_heads_and_requests_have_parameters_of_their_own(
    width: int, tokens: int, expected: float
) -> None:
    assert ratio(width, tokens) == pytest.approx(expected, abs=0.01)
    assert ratio(width, tokens) < paper(0.6, GROUPED, tokens)


def test_an_entry_takes_its_share_of_a_chunk() -> None:
    assert entry_bytes(64) == -(-(2 * (60 * 32 + 40 * 16) + 10 * 64 + 4 * 100) // 100) == 62
    assert 4 * 64 / ratio(64, CHUNK) == pytest.approx(61.6)


def test_every_division_of_a_slot_fits_its_entries() -> None:
    """Entries that stay are one chunk. A ring of R has at most R / 100 chunks, rounded up, and at least one."""
    for capacity in (1, 7, 99, 100, 101, 250, 1024):
        sizes = ZipSizes.of(capacity)
        for fixed in range(capacity):
            chunks, high = -(-(capacity - fixed) // CHUNK), salient_of(fixed)
            assert high + 60 * chunks <= sizes.high
            assert fixed - high + 40 * chunks <= sizes.low
            assert 1 + chunks <= sizes.chunks
