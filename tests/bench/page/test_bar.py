from bench.page.bar import Bar, bars_table, percent, times


def bar(measured: dict[str, float | None], target: float | None = 2.0, at_most: bool = False) -> Bar:
    return Bar("1", "faster", measured, target, times, at_most)


def test_a_bar_is_met_when_every_case_reaches_it() -> None:
    assert bar({"4": 2.0, "8": 3.0}).verdict == "met"
    assert bar({"4": 1.99, "8": 3.0}).verdict == "**missed**"
    assert bar({"4": 2.0, "8": 2.1}, at_most=True).verdict == "**missed**"


def test_what_was_not_measured_says_so() -> None:
    assert bar({"4": None, "8": None}).row == ("faster", "at least 2.00x", "not measured", "not measured")
    assert bar({"4": 2.5, "8": None}).row == ("faster", "at least 2.00x", "4: 2.50x; 8: ?", "met where measured")
    assert bar({"4": 1.5, "8": None}).verdict == "**missed**"


def test_a_bar_without_a_target_is_only_shown() -> None:
    assert bar({"ringkv": 0.5}, target=None).row == ("faster", "", "ringkv: 0.50x", "shown")


def test_bars_stand_under_their_group() -> None:
    text = bars_table([bar({"": 3.0}), Bar("4", "near", {"": 0.81}, 0.8, percent)])
    assert text.splitlines()[0].startswith("### Long prompts")
    assert "| faster | at least 2.00x | 3.00x | met |" in text
    assert "| near | at least 80% | 81% | met |" in text
