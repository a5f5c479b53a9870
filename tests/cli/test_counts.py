import pytest
from typer import BadParameter

from ringkv.base.errors import InvalidRequest
from ringkv.cli.options import parse_count, token_count


@pytest.mark.parametrize(
    ("text", "count"),
    [("7000", 7000), ("128k", 131_072), ("1M", 1_048_576), ("1.5k", 1536), ("131,072", 131_072), ("1_048_576", 2**20)],
)
def test_counts_take_a_suffix_and_separators(text: str, count: int) -> None:
    assert parse_count(text, "tokens") == count


@pytest.mark.parametrize("text", ["", "k", "1x", "-5", "1 2", "1.5", "1,5k", "70,00", "1,000.5"])
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^tokens is"):
        parse_count(text, "tokens")


@pytest.mark.parametrize(("value", "count"), [(4096, 4096), ("32k", 32_768)])
def test_a_flag_takes_what_a_user_writes_and_what_a_configuration_file_has(value: str | int, count: int) -> None:
    assert token_count(value) == count


def test_a_flag_with_anything_else_is_a_usage_error() -> None:
    with pytest.raises(BadParameter, match="whole number"):
        token_count("10x")
