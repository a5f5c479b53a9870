"""Checks of grammars in threads: the queue, giving up, and closing."""

from concurrent.futures import wait
from threading import Event
from typing import Any

import pytest

from ringkv.base.errors import Draining, QueueFull
from ringkv.text import guide_processes
from ringkv.text.grammar import regex
from ringkv.text.guide_processes import GuideProcesses
from ringkv.text.tokenizer import Tokenizer
from tests.text.guide_running import FOREVER, NESTED, VOCAB, until, waited


def patient(tokens: Tokenizer) -> GuideProcesses:
    """Guides that check a nested grammar until the check is ended."""
    return GuideProcesses(lambda: tokens, VOCAB, compiling=FOREVER)


def checked_now(guides: GuideProcesses) -> int:
    """Return how many checks have a process."""
    return sum(check._process is not None for check in guides._unchecked.values())


def test_others_are_checked_while_a_hostile_grammar_compiles(bytewise: Tokenizer) -> None:
    guides = patient(bytewise)
    hostile = guides.check_soon(regex(NESTED + "b"))
    for at in range(3):
        guides.check_soon(regex(f"a{{{at}}}")).result()
    assert not hostile.done()
    guides.close()


def test_a_grammar_beyond_the_queue_is_refused_and_a_cancelled_one_leaves_it(
    bytewise: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    guides, go, checked = GuideProcesses(lambda: bytewise, VOCAB), Event(), list[str]()
    monkeypatch.setattr(guides, "_try", lambda grammar, _: checked.append(grammar) or waited(go))
    monkeypatch.setattr(guide_processes, "WAITING", 3)
    futures = [guides.check_soon(str(at)) for at in range(5)]  # two are checked, and three wait
    with pytest.raises(QueueFull, match="3 grammars wait") as full:
        guides.check_soon("5")
    assert full.value.retry_after == 6
    guides.give_up(futures[3])
    assert futures[3].cancelled()
    futures.append(guides.check_soon("6"))
    go.set()
    wait(futures)
    assert sorted(checked) == ["0", "1", "2", "4", "6"]
    until(lambda: not guides._unchecked)


def test_closing_ends_the_checks_that_run_and_those_that_wait(bytewise: Tokenizer) -> None:
    guides = patient(bytewise)
    futures = [guides.check_soon(regex(NESTED + letter)) for letter in "cdef"]
    until(lambda: checked_now(guides) == 2)
    guides.close()
    futures.append(guides.check_soon(regex("a")))
    assert [type(future.exception()) for future in futures] == [Draining] * 5


def test_a_check_that_begins_while_another_thread_closes_ends(
    bytewise: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    guides = patient(bytewise)
    program, submit = guides._program.fork, guides._executor.submit
    forked = Event()
    monkeypatch.setattr(guides._program, "fork", lambda: forked.set() or program())

    def submit_and_close(*call: Any) -> Any:
        future = submit(*call)
        waited(forked)
        guides.close()  # it does not know the check yet
        return future

    monkeypatch.setattr(guides._executor, "submit", submit_and_close)
    assert isinstance(guides.check_soon(regex(NESTED)).exception(), Draining)


def test_a_check_that_is_given_up_ends_at_once_and_others_go_on(bytewise: Tokenizer) -> None:
    guides = patient(bytewise)
    hostile = [guides.check_soon(regex(NESTED + letter)) for letter in "gh"]
    following = guides.check_soon(regex("a"))
    until(lambda: checked_now(guides) == 2)
    guides.give_up(hostile[0])
    assert following.result() is None  # two are checked at a time, so one of them has ended
    assert not hostile[1].done()
    guides.close()
