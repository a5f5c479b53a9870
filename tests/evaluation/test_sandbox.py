import json
from itertools import islice

import pytest

from ringkv.evaluation.sandbox import passes, solves

GIVEN = 'def double(x: int) -> int:\n    """Twice x."""\n'
TEST = "assert double(4) == 8"


@pytest.mark.parametrize(
    "answer",
    [
        "    return 2 * x\n",
        "```python\ndef double(x: int) -> int:\n    return x + x\n```",
        "Here it is:\n```\ndef double(x):\n    return x * 2\n```\nIt doubles.",
        "```python3\ndef double(x):\n    return x * 2\n```\nor\n```Python\ndef double(x):\n    return 2 * x\n```",
        "```python\ndef double(x):\n    return 2 * x\n\nprint('four', double(2))\n```",
        "```python\nimport sys\n\ndef double(x):\n    sys.stdout.write('x')\n    return 2 * x\n```",
        "```python\ndef double(x):\n    return pow(2 * x, 1, 99)\n```",
        "```python\ndef double(x):\n    return 2 * x\n\nif __name__ == '__main__':\n    double(input())\n```",
    ],
)
def test_a_right_program_scores_1_in_any_form(answer):
    assert solves(answer, GIVEN, TEST) == 1


@pytest.mark.parametrize(
    "answer", ["", "    return x\n", "```python\ndef double(x:\n```", "    return x\nexit()", "import os\nos._exit(0)"]
)
def test_a_wrong_program_scores_0(answer):
    assert solves(answer, GIVEN, TEST) == 0


@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "x = 'a' * (3 << 30)",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import os; os.system('true')",
        "import subprocess; subprocess.run(['true'])",
        "open('left-behind', 'w').write('x' * 10)",
        "import os; os._exit(3)",
    ],
    ids=["endless", "asleep", "greedy", "network", "shell", "process", "file", "exit"],
)
def test_a_program_that_leaves_the_sandbox_fails(program):
    assert not passes(program, seconds=1)


def test_an_existing_file_is_not_truncated(tmp_path):
    (tmp_path / "precious").write_text("all of it")
    assert not passes(f"import os; os.open({str(tmp_path / 'precious')!r}, os.O_WRONLY | os.O_TRUNC)")
    assert (tmp_path / "precious").read_text() == "all of it"


def test_the_datasets_own_solutions_pass_and_empty_ones_do_not(texts):
    with (texts / "code" / "HumanEval.jsonl").open() as file:
        problems = [json.loads(line) for line in islice(file, 0, None, 4)]
    for one in problems:
        test = f"{one['test']}\ncheck({one['entry_point']})"
        assert solves(one["canonical_solution"], one["prompt"], test) == 1
        assert solves("    pass\n", one["prompt"], test) == 0
