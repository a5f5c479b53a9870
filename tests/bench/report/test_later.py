from bench.report.later import later
from ringkv.evaluation.journal import Record
from ringkv.evaluation.summary import group_scores

SIZES = {"prompt_tokens": 4000, "output_tokens": 2, "kept": 1000, "facts": {"length": 4096}}
CELLS = ("full", "arkvale 2x", "arkvale 4x", "snapstream 2x select=keydiff", "snapstream 4x select=keydiff")


def answers(task: str, found: tuple[int, ...], count: int = 20) -> list[Record]:
    """Answers under each cell, so many of which are right."""
    return [
        Record(task, "next", f"{index}", cell, float(index < right), **SIZES)
        for cell, right in zip(CELLS, found, strict=True)
        for index in range(count)
    ]


def test_a_text_has_scores_and_what_is_lost_on_the_same_questions() -> None:
    found = {
        "later-qwen": [*answers("vt", (20, 20, 10, 0, 0)), *answers("niah_single_3", (10, 10, 10, 10, 0))],
        "lookups-qwen": answers("registers", (20, 20, 20, 20, 0)),
        "conversation-qwen": [one for one in answers("conversation", (20, 10, 10, 5, 0)) if "4x sel" not in one.cell],
    }
    head, _, *lines = later(found, {"later-qwen": group_scores(found["later-qwen"])}).splitlines()
    assert head == "| text | prompts | full | arkvale 1/2 | arkvale 1/4 | KeyDiff 1/2 | KeyDiff 1/4 |"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [cell.split(" (")[0] for cell in cells[0]] == ["RULER, 4k, 4 tasks", "40", "75", "75", "50", "25", "0"]
    assert cells[1][:4] == ["640 registers, 10k", "20", "100", "100 (equal)"]
    assert cells[1][-1] == "0 (-100 [-100, -100])"
    assert cells[2][:3] == ["second question, 4k", "20", "100"]
    assert cells[2][-1] == ""
    assert len(lines) == 3
