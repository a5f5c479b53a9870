"""The workload of bench.roles, and what it calls wrong."""

from collections import Counter

from bench.roles import steps
from bench.roles.__main__ import wrong
from bench.roles.tokens import mixed


def test_the_workload_has_as_many_requests_as_are_asked_for_and_is_the_same_each_time():
    groups = mixed(200)
    requests = [one for group in groups for one in group]
    assert len({one.id for one in requests}) == 200
    assert all(len({one.tokens for one in group}) == 1 for group in groups)
    assert {len(group) for group in groups} == {1, 2, 3}
    assert len(Counter(one.kv for one in requests)) == 7
    assert [(one, one.own_seed) for one in requests] == [(one, one.own_seed) for group in mixed(200) for one in group]


def test_a_count_that_must_be_zero_and_a_slow_p99_are_wrong():
    good = {"part": "kills", "engine": "decode", "lost_requests": 0, "hung_requests": 0, "more_files": -1}
    assert wrong([good]) == []
    assert wrong([good | {"hung_requests": 2}]) == ["kills decode: hung_requests is 2"]
    slow = {"part": "steps", "engine": "apart", "itl_p99_ratio": 1.31}
    assert len(steps.wrong([slow, slow | {"engine": "both"}, slow | {"itl_p99_ratio": 1.3}])) == 1
