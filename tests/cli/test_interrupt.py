import os
import signal

import pytest

from ringkv.cli.interrupt import gently


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_ctrl_c_is_noted_and_the_second_ends() -> None:
    with gently() as stop:
        assert not stop
        press()
        assert stop
        with pytest.raises(KeyboardInterrupt):
            press()


def test_afterwards_ctrl_c_is_as_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with gently():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
