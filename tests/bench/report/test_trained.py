from bench.report.trained import trained
from ringkv.evaluation.journal import Record

SIZES = {"prompt_tokens": 2000, "output_tokens": 2, "kept": 250, "facts": {"length": 2048}}


def answers(place: str, cell: str, found: int) -> list[Record]:
    """20 answers, of which `found` are right."""
    return [Record("recall", place, f"{index}", cell, float(index < found), **SIZES) for index in range(20)]


def test_a_cell_has_recall_and_what_it_loses_on_the_same_prompts() -> None:
    after = [*answers("after", "full", 20), *answers("after", "snapstream 2x", 0)]
    found = {"trained-mla": [*answers("inside", "full", 19), *answers("inside", "snapstream 4x", 19), *after]}

    assert trained(found).splitlines()[2:] == [
        "| full |  |  |  | 95 |",
        "| snapstream 1/4 |  |  |  | 95 (+0 [+0, +0]) |",
        "| snapstream 1/2, question after |  |  |  | 0 (-100 [-100, -100]) |",
    ]
