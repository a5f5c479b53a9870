from ringkv.evaluation.journal import Record
from ringkv.evaluation.report.needle_grid import NeedleGrid, needle_grids


def record(cell: str, place: int, depth: float, score: float, length: int = 4096) -> Record:
    return Record("passkey", "inside", f"{place}", cell, score, facts={"depth": depth, "length": length})


def percents(grid: NeedleGrid) -> list[tuple[str, list[list[str]]]]:
    return [(depth, [[one.percent for one in found] for found in policies]) for depth, policies in grid.rows]


def test_each_policy_has_its_own_columns_with_the_full_cache_first() -> None:
    records = [record("a 4x b=1", n, n % 2, n % 2, length) for n in range(4) for length in (512, 1024)]
    records += [record("full", n, n % 2, 1.0, 512) for n in range(4)]
    records += [record("a 2x b=1", n, n % 2, 0.5, 1024) for n in range(4)]
    (grid,) = needle_grids(records)
    assert (grid.policies, grid.lengths) == ([("full", [""]), ("a b=1", ["2x", "4x"])], [512, 1024])
    assert percents(grid) == [
        ("0%", [["100", ""], ["", "50", "0", "0"]]),
        ("100%", [["100", ""], ["", "50", "100", "100"]]),
    ]


def test_many_depths_are_put_in_bands_with_the_mean_of_their_prompts() -> None:
    scores = {n / 19: float(n % 3 > 0) for n in range(20)}
    (grid,) = needle_grids([record("full", n, depth, score) for n, (depth, score) in enumerate(scores.items())])
    assert len(grid.rows) == 10
    for number, (depth, ((found,),)) in enumerate(percents(grid)):
        inside = [s for d, s in scores.items() if number / 10 <= d < (number + 1) / 10 or (number == 9 and d == 1)]
        assert depth == f"{10 * number}% to {10 * number + 10}%"
        assert found == f"{100 * sum(inside) / len(inside):.0f}"
