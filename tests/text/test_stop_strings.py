import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringkv.base.errors import InvalidRequest
from ringkv.text.stop_strings import StopStrings

STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=4)
PARTS = st.lists(st.text(alphabet="abc\n", max_size=5), max_size=12)


def naive(text: str, stops: list[str]) -> str:
    """Search letter by letter; end before the longest stop string as soon as one is complete."""
    for end in range(len(text) + 1):
        if complete := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, complete))]
    return text


@given(parts=PARTS, stops=STOPS)
@example(parts=["aabb"], stops=["aabb", "ab"])
@example(parts=["caab"], stops=["b", "aab"])
def test_the_text_ends_where_a_naive_search_ends_it(parts: list[str], stops: list[str]):
    search = StopStrings(stops)
    seen = "".join(map(search.push, parts)) + search.finish()
    assert seen == naive("".join(parts), stops)
    assert (search.stopped is not None) == (any(stop in "".join(parts) for stop in stops))


@given(parts=PARTS, stops=STOPS)
def test_only_what_may_become_a_stop_string_is_held_back(parts: list[str], stops: list[str]):
    search, seen, received = StopStrings(stops), "", ""
    for part in parts:
        seen += search.push(part)
        received += part
        if search.stopped:
            return
        held = received[len(seen) :]
        starts = {stop[:n] for stop in stops for n in range(1, len(stop))}
        assert held == max((start for start in starts if received.endswith(start)), key=len, default="")


def test_nothing_follows_a_stop_string():
    search = StopStrings(["END"])
    assert [search.push("abE"), search.push("NDrest"), search.push("more"), search.finish()] == ["ab", "", "", ""]
    assert search.stopped == "END"


def test_an_empty_stop_string_is_refused():
    with pytest.raises(InvalidRequest, match="empty") as raised:
        StopStrings(["ok", ""])
    assert raised.value.param == "stop"
