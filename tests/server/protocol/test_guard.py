"""Requests a minute of each key."""

import pytest

from ringkv.base.errors import RateLimited
from ringkv.server.protocol.guard import Access, RateLimit
from ringkv.server.protocol.keys import ApiKeys
from ringkv.text.tokenizer import Tokenizer
from tests.server.conftest import serving
from tests.server.echo import channel
from tests.server.protocol.test_keys import ALICE, BOB, KEYS, bearer


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def taken(limit: RateLimit, label: str = "") -> int:
    """Take until it is refused; return how many were taken."""
    for count in range(10_000):
        try:
            limit.take(label)
        except RateLimited:
            return count
    raise AssertionError


def test_an_hour_has_sixty_minutes_worth_and_the_first_burst() -> None:
    clock, count = Clock(), 0
    limit = RateLimit(7, clock)
    for _ in range(3601):
        count += taken(limit)
        clock.now += 1
    assert count == 7 + 60 * 7


def test_a_quiet_hour_is_worth_one_minute() -> None:
    clock = Clock()
    limit = RateLimit(7, clock)
    assert taken(limit) == 7
    clock.now += 3600
    assert taken(limit) == 7


@pytest.mark.parametrize("per_minute", [1, 7, 90, 6000])
def test_a_refused_request_is_taken_after_the_seconds_it_was_told(per_minute: int) -> None:
    clock = Clock()
    limit = RateLimit(per_minute, clock)
    taken(limit)
    with pytest.raises(RateLimited) as refused:
        limit.take("")
    clock.now += (refused.value.retry_after or 0) + 1e-6
    limit.take("")


def test_keys_do_not_use_up_each_others_requests() -> None:
    limit = RateLimit(3, Clock())
    assert [taken(limit, label) for label in ("a", "b", "a")] == [3, 3, 0]


def test_a_key_over_its_rate_gets_429_while_others_and_probes_are_served(tokenizer: Tokenizer) -> None:
    with serving(channel(), tokenizer, None, access=Access(ApiKeys(KEYS), per_minute=2)) as served:

        def post(key: str) -> tuple[int, str | None]:
            body = {"prompt": "ab", "max_tokens": 1}
            answer = served.http.post("/v1/completions", json=body, headers=bearer(key))
            return answer.status_code, answer.headers.get("retry-after")

        assert [post(ALICE) for _ in range(4)] == [(200, None), (200, None), (429, "30"), (429, "30")]
        assert post(BOB) == (200, None)
        assert served.http.get("/v1/models", headers=bearer(ALICE)).status_code == 200
        error = served.http.post("/v1/completions", headers=bearer(ALICE)).json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert "alice has 2 requests" in error["message"]
