import re
import threading
from pathlib import Path

import pytest

from ringkv.text.guide import DeepStack

SIZE = 48 << 20


def mapped_around(address: int) -> int:
    """Return the size of the memory mapping that contains an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in re.match(r"(\w+)-(\w+)", line).groups())  # type: ignore[union-attr]
        if start <= address < end:
            return end - start
    raise AssertionError


def test_calls_run_in_one_thread_with_the_stack_and_others_keep_theirs() -> None:
    before = threading.stack_size()
    stack = DeepStack(SIZE, "deep")
    first, second = (stack.submit(threading.get_ident).result() for _ in range(2))
    assert first == second != threading.get_ident()
    assert mapped_around(first) >= SIZE  # a thread's identifier is an address on its stack
    assert threading.stack_size() == before


def test_an_error_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        DeepStack(SIZE, "deep").submit(lambda: 1 / 0).result()
