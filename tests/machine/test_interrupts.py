import os
import signal
import subprocess
import sys
import threading

import pytest

from ringkv.machine.interrupts import defer_interrupts, uninterrupted


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def run_and_press(presses: int, done: list[str]) -> None:
    with uninterrupted():
        for _ in range(presses):
            press()
        done.append("all of it")


@pytest.mark.parametrize(("presses", "expected"), [(1, ["all of it"]), (2, [])])
def test_a_first_ctrl_c_is_raised_at_the_end_and_a_second_at_once(presses: int, expected: list[str]) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_and_press(presses, done)
    assert done == expected


def test_uninterrupted_restores_the_signal_handler() -> None:
    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_uninterrupted_does_nothing_in_other_threads() -> None:
    done: list[str] = []

    def run() -> None:
        with uninterrupted():
            done.append("ran")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == ["ran"]


def test_the_first_ctrl_c_is_noted_and_the_second_raises() -> None:
    with defer_interrupts() as pressed:
        assert not pressed
        press()
        assert pressed
        with pytest.raises(KeyboardInterrupt):
            press()


def test_defer_interrupts_restores_the_signal_handler() -> None:
    before = signal.getsignal(signal.SIGINT)
    with defer_interrupts():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_sigterm_exits_with_a_shells_status_for_it() -> None:
    code = "import os, signal; from ringkv.machine.interrupts import exit_on_sigterm; exit_on_sigterm(); "
    code += "os.kill(os.getpid(), signal.SIGTERM); print('still here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")
