import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringkv.base.errors import InvalidRequest
from ringkv.plan.units import parse_bytes, parse_ratio, parse_share, show_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1.5GB", 1_500_000_000),
        ("24 gb", 24 * 10**9),
        ("80G", 80 * 10**9),
        ("16GiB", 17_179_869_184),
        ("512MiB", 536_870_912),
        ("100kB", 100_000),
        ("4096", 4096),
        ("7B", 7),
        (123, 123),
    ],
)
def test_sizes_are_parsed(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "much", "1.5 parsecs", "-1GB", "1,5GB", "iB", "5iB", "16", "1023"])
def test_an_invalid_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match="device_memory is") as error:
        parse_bytes(text, "device_memory")
    assert error.value.param == "device_memory"


@pytest.mark.parametrize(("text", "ratio"), [("4x", 4.0), ("1.5X", 1.5), (8, 8.0), ("16", 16.0), (" 2 x ", 2.0)])
def test_ratios_are_parsed(text: str | float, ratio: float) -> None:
    assert parse_ratio(text) == ratio


@pytest.mark.parametrize("text", ["0.5x", "x", "4y", "-4x", "", 0])
def test_a_ratio_below_1_is_refused(text: str | float) -> None:
    with pytest.raises(InvalidRequest, match="such as 4x"):
        parse_ratio(text)


@pytest.mark.parametrize(
    ("text", "share"),
    [("25%", 0.25), (0.25, 0.25), ("0.5", 0.5), ("512", 512.0), (512, 512.0), ("12.5%", 0.125), ("1", 1.0)],
)
def test_shares_are_below_one_and_counts_are_not(text: str | float, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize("text", ["100%", "0", "0%", "150%", "-3", "half", "1.5", 2.5, 0])
def test_an_invalid_share_is_refused(text: str | float) -> None:
    with pytest.raises(InvalidRequest, match="such as 25%"):
        parse_share(text)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (70_272, "70.3 kB"),
        (17_179_869_184, "17.2 GB"),
        (999_900, "1,000 kB"),
        (1e12, "1 TB"),
    ],
)
def test_sizes_are_shown_in_three_digits(count: float, shown: str) -> None:
    assert show_bytes(count) == shown


@given(st.integers(1, 10**15))
def test_a_formatted_size_parses_back_within_half_a_percent(count: int) -> None:
    assert parse_bytes(show_bytes(count).replace(",", "")) == pytest.approx(count, rel=0.005)
