"""What the check of the wheel says of a command that fails."""

import sys

import pytest

from bench.wheel import WheelFailed, run


def test_a_command_that_fails_is_reported_with_the_end_of_its_output() -> None:
    code = "import sys; print(*range(40), sep='\\n'); sys.exit('the reason')"
    with pytest.raises(WheelFailed, match=r"(?s)exited with 1:\n26\n.*39\nthe reason$"):
        run(sys.executable, "-c", code)
