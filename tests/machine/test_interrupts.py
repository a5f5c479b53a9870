import os
import signal
import threading

import pytest

from ringkv.machine.interrupts import defer_interrupts, uninterrupted


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def work(presses: int, done: list[str]) -> None:
    with uninterrupted():
        for _ in range(presses):
            press()
        done.append("all of it")


@pytest.mark.parametrize(("presses", "expected"), [(1, ["all of it"]), (2, [])])
def test_a_first_ctrl_c_waits_for_the_end_and_a_second_does_not(presses: int, expected: list[str]) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        work(presses, done)
    assert done == expected


def test_afterwards_ctrl_c_is_as_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_other_threads_run_as_they_are() -> None:
    done: list[str] = []

    def run() -> None:
        with uninterrupted():
            done.append("ran")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == ["ran"]


def test_the_first_ctrl_c_is_noted_and_the_second_ends() -> None:
    with defer_interrupts() as stop:
        assert not stop
        press()
        assert stop
        with pytest.raises(KeyboardInterrupt):
            press()


def test_after_gently_too_ctrl_c_is_as_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with defer_interrupts():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
