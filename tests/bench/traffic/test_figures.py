from typing import Any

import pytest

from bench.traffic.figures import TrafficTurn, measured, quantile


def reply(*answers: tuple[float, list[float], int | None, str], duration: float = 10.0) -> dict[str, Any]:
    """Return the clients' reply. An answer is the first token's time, the gaps, the tokens and the error."""
    return {
        "duration": duration,
        "started": [0.0 for _ in answers],
        "first": [first for first, *_ in answers],
        "gaps": [gaps for _, gaps, *_ in answers],
        "latencies": [first + sum(gaps) for first, gaps, *_ in answers],
        "outputs": [tokens for *_, tokens, _ in answers],
        "errors": [error for *_, error in answers],
        "cpu_s": 0.5,
    }


def test_a_request_is_good_if_its_first_token_and_its_tokens_are_in_time() -> None:
    answers = [
        (1.9, [0.1] * 9, 10, ""),
        (2.1, [0.1] * 9, 10, ""),  # late
        (0.1, [0.2] * 9, 10, ""),  # slow
        (0.1, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], 10, ""),  # one gap, but fast on average
    ]
    turn = TrafficTurn.of(reply(*answers), [10] * 4, None)
    assert turn.good == 2
    assert turn.longest == 1.0
    assert turn.tokens == 40


def test_a_cut_or_failed_answer_is_not_good_and_its_reason_is_kept() -> None:
    cut = TrafficTurn.of(reply((0.1, [0.1] * 4, 5, "")), [10], None)
    assert (cut.good, cut.error) == (0, "an answer has 5 of 10 tokens")
    failed = TrafficTurn.of(reply((0.0, [], None, "Traceback\n  line\nOSError: refused\n")), [10], None)
    assert (failed.good, failed.error) == (0, "OSError: refused")
    assert measured([cut, failed])["failed_requests"] == 2


def test_without_usage_nearly_as_many_events_as_tokens_are_a_whole_answer() -> None:
    whole, half = (0.1, [0.01] * 8, None, ""), (0.1, [0.01] * 4, None, "")
    turn = TrafficTurn.of(reply(whole, half), [10, 10], None)
    assert (turn.good, turn.tokens) == (1, 15)


def test_goodput_counts_the_time_of_arrivals_and_throughput_the_time_to_the_last_answer() -> None:
    answers = [(0.1, [0.1] * 9, 10, "")] * 6
    arriving = measured([TrafficTurn.of(reply(*answers, duration=4.0), [10] * 6, 3.0)])
    assert (arriving["goodput"], arriving["tokens_per_s"], arriving["good_share"]) == (2.0, 15.0, 1.0)
    waiting = measured([TrafficTurn.of(reply(*answers, duration=4.0), [10] * 6, None)])
    assert waiting["goodput"] == 1.5


def test_turns_are_taken_together() -> None:
    fast = TrafficTurn.of(reply(*[(0.1, [0.01] * 9, 10, "")] * 99, duration=10.0), [10] * 99, None)
    slow = TrafficTurn.of(reply((5.0, [0.3] * 9, 10, ""), duration=40.0), [10], None)
    found = measured([fast, slow])
    assert found["tokens_per_s"] == 1000 / 50
    assert (found["ttft_s"], found["ttft_p99_s"]) == (0.1, 0.1)
    assert found["tpot_s"] == pytest.approx(0.01)
    assert (found["gap_s"], found["gap_p99_s"]) == (0.3, pytest.approx(0.01))
    assert found["sent_requests"] == 100


def test_a_quantile_is_the_smallest_value_that_the_share_does_not_exceed() -> None:
    values = [float(value) for value in range(1, 201)]
    for share in (0.5, 0.99, 1.0, 0.001):
        found = quantile(values, share)
        assert found is not None
        assert sum(value <= found for value in values) >= share * len(values)
        assert sum(value < found for value in values) < share * len(values)
    assert quantile([], 0.5) is None
