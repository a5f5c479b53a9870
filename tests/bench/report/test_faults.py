from bench.report.faults import faults
from bench.results import ResultRow
from tests.bench.report.made import measured


def lines(rows: list[ResultRow]) -> list[str]:
    return [line for line in faults(rows).splitlines()[2:] if line.startswith("|")]


def test_the_newest_runs_of_all_fuzzing_targets_are_added_up() -> None:
    def run(number: str, target: str, findings: int, seconds: float = 1.0) -> list[ResultRow]:
        figure = {"target": target, "cases": 1200, "findings": findings, "fuzzed_s": 600.0, "peak_bytes": 2e7}
        return measured("fuzz", figure | {"slowest_s": seconds}, run=number)

    (line,) = lines(run("1", "http", 3, 9.0) + run("1", "gguf", 2, 1.5) + run("2", "http", 0))
    assert line.startswith(
        "| fuzzing, 10 minutes each; inputs: gguf 1,200, http 1,200 | 2 findings; slowest 1.5 s, largest 20 MB |"
    )


def test_a_failed_check_under_load_is_shown_with_the_bound_of_the_latency() -> None:
    figure = {
        "minutes": 10,
        "sent_requests": 900,
        "refused_share": 0.5,
        "itl_p99_s": 0.19,
        "step_s": 0.03,
        "chunk_s": 0.12,
        "http_bytes": 150e6,
        "passed": 0,
    }
    (line,) = lines(measured("overload", figure))
    assert (
        "**a check failed**: 900 requests in 10 minutes, 50% refused, inter-token p99 190 ms (bound 180), HTTP 150 MB"
        in line
    )


def test_of_the_largest_requests_the_one_with_the_longest_gap_beside_it_is_shown() -> None:
    figures = [
        {"kind": kind, "gap_s": seconds, "allowed_s": 0.3, "http_bytes": 1e8}
        for kind, seconds in (("tools", 0.1), ("echo", 0.2), ("bodies", 0.15))
    ]
    (line,) = lines(measured("limits_of_requests", *figures))
    assert "of the small one 200 ms (echo), allowed 300 ms; HTTP process 100 MB" in line


def test_requests_that_a_kill_met_are_counted_by_how_they_ended() -> None:
    figure = {"failed_requests": 320, "cut_requests": 0, "hung_requests": 1, "back_s": 2.6, "slowest_back_s": 5.6}
    (line,) = lines(measured("kill", figure))
    assert "320 requests ended with an error, 0 silently, 1 hung; answers again after 2.6 s, at most 5.6 s" in line
    (line,) = lines(measured("kill", figure | {"drained_requests": 16, "lost_requests": 0}))
    assert "at most 5.6 s. SIGTERM: 16 accepted finished, 0 did not" in line
