from bench.report.commits import beside
from tests.bench.report.made import measured


def run(number: str, model: str, slots: int, step_ratio: float) -> list[dict[str, object]]:
    times = {"prefill_before_s": 2.0, "prefill_now_s": 1.0, "step_before_s": 0.02, "step_now_s": 0.02 * step_ratio}
    figure = {"model": model, "slots": slots, "before": "aaa", **times, "prefill_ratio": 0.5, "step_ratio": step_ratio}
    return measured("beside", figure, run=number)


def test_the_newest_run_of_each_model_and_slot_count_is_shown() -> None:
    rows = run("1", "qwen2.5-coder-1.5b", 1, 1.3) + run("1", "smollm2", 8, 1.2) + run("1", "smollm2", 1, 1.1)
    rows += run("2", "smollm2", 8, 0.9)
    assert beside(rows).splitlines()[2:] == [
        "| SmolLM2-135M | Intel, AMX | 1 | aaa, c | 2.00 s, 1.00 s | 0.500 | 20.0 ms, 22.0 ms | 1.100 |",
        "| SmolLM2-135M | Intel, AMX | 8 | aaa, c | 2.00 s, 1.00 s | 0.500 | 20.0 ms, 18.0 ms | 0.900 |",
        "| Qwen2.5-Coder-1.5B | Intel, AMX | 1 | aaa, c | 2.00 s, 1.00 s | 0.500 | 20.0 ms, 26.0 ms | 1.300 |",
    ]
