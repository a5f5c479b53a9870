"""Guides in processes of their own: the same masks, and limits of time and memory that hold whatever a grammar does."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import socketpair
from threading import Event, Timer
from typing import Any

import pytest

from ringkv.base.errors import Draining, InvalidRequest, QueueFull, RequestFailed, RingKVError
from ringkv.text import guide_processes, guide_server
from ringkv.text.grammar import choice, json_schema, lark, lark_or_gbnf, regex
from ringkv.text.guide import CACHED_GRAMMARS, Guides, TokenGuide
from ringkv.text.guide_messages import CALLS, REPLIES, Call, GuideReady, Make
from ringkv.text.guide_processes import GuideProcesses
from ringkv.text.tokenizer import Tokenizer
from ringkv.wire.link import Link
from tests import byte_tokenizer

VOCAB, END = 300, 257
COMPILING, MASKING = 1.0, 0.5
SCHEMA = json_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
AMBIGUOUS = "s: " + "s s | " * 1000 + '"a"'  # compiling it takes 0.3 s; its masks 1.7 s with 256 tokens
NESTED = "(" * 60_000 + "a" + ")" * 60_000  # a regular expression that takes minutes
REPEATED = "(a{1000}){1000}"  # takes 250 MB
CHILD = """
import sys
from ringkv.text.guide_processes import GuideProcesses
from ringkv.text.tokenizer import Tokenizer
guides = GuideProcesses(lambda: Tokenizer.from_directory(sys.argv[1]), 300, compiling=2.0)
guides.check(sys.argv[2])
kept = guides(sys.argv[2])
print("checked", flush=True)
guides.check(sys.argv[3])
"""


@pytest.fixture(scope="module")
def guides(bytewise: Tokenizer) -> Iterator[GuideProcesses]:
    """Guides whose limits are shorter than a server's, but 3 times what these grammars take, or a third of it."""
    yield from running(bytewise, COMPILING, MASKING)


@pytest.fixture
def patient_guides(bytewise: Tokenizer) -> Iterator[GuideProcesses]:
    """Guides with a limit of time that no grammar reaches, however slowly the machine gives it memory."""
    yield from running(bytewise, 60.0, 60.0)


def running(tokens: Tokenizer, compiling: float, masking: float) -> Iterator[GuideProcesses]:
    guides = GuideProcesses(lambda: tokens, VOCAB, compiling, masking)
    yield guides
    guides._program._stop()  # a traceback of a failed test may keep them


def forked(parent: int | None = None) -> list[int]:
    """Return the processes whose parent is ours, or the given one."""
    parent = os.getpid() if parent is None else parent
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(folder.name))
    return found


@contextmanager
def stopped(process: int, seconds: float) -> Iterator[None]:
    """Stop a process, and let it continue after so many seconds."""
    os.kill(process, signal.SIGSTOP)
    timer = Timer(seconds, os.kill, (process, signal.SIGCONT))
    timer.start()
    yield
    timer.join()


def waited(event: Event) -> None:
    assert event.wait(10)


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds


@pytest.mark.parametrize("grammar", [SCHEMA, regex("[ab]{3}c?"), choice(["yes", "no"])])
def test_the_masks_are_those_of_guides_in_this_process(
    guides: GuideProcesses, bytewise: Tokenizer, grammar: str
) -> None:
    ours, theirs = Guides(lambda: bytewise, VOCAB)(grammar), guides(grammar)
    for left in range(12, 0, -1):
        mask = ours.allowed(left)
        assert (theirs.allowed(left), theirs.is_cut) == (mask, ours.is_cut)
        bits = int.from_bytes(mask, "little")
        token = bits.bit_length() - 1  # the highest: an end as soon as one is allowed
        if token == END:
            break
        ours.take(token)
        theirs.take(token)


def test_two_guides_of_a_grammar_advance_alone_and_share_a_process(guides: GuideProcesses) -> None:
    first, second = guides(regex("ab")), guides(regex("ab"))
    first.take(ord("a"))
    assert first.allowed(1000) == (1 << ord("b")).to_bytes(40, "little")
    assert second.allowed(1000) == (1 << ord("a")).to_bytes(40, "little")
    assert first._process is second._process


@pytest.mark.parametrize(
    ("grammar", "reason", "most"),
    [
        (lark("start: s\n" + AMBIGUOUS), "computing its first token masks takes more than 0.5 s; simplify", MASKING),
        (lark('start: "x" s\n' + AMBIGUOUS), "computing its first token masks takes more than 0.5 s", MASKING),
        (regex(NESTED), "compiling it takes more than 1 s; simplify", COMPILING),
        (regex("a{1,3"), "regex", MASKING),
    ],
    ids=["ambiguous", "ambiguous later", "nested", "invalid"],
)
def test_a_grammar_is_refused_at_a_limit_with_its_number(
    guides: GuideProcesses, grammar: str, reason: str, most: float
) -> None:
    cpu = os.times()
    with pytest.raises(InvalidRequest, match=reason):
        guides.check(grammar)
    ours = os.times()
    assert ours.user + ours.system - cpu.user - cpu.system < 0.5 * most  # the work is another process's
    guides.check(regex("a"))


def test_a_grammar_is_refused_at_the_limit_of_memory(patient_guides: GuideProcesses) -> None:
    with pytest.raises(InvalidRequest, match="takes more than 128 MB, or more stack"):
        patient_guides.check(regex(REPEATED))
    patient_guides.check(regex("a"))


def test_a_refusal_is_remembered(guides: GuideProcesses) -> None:
    grammar = lark("start: s\n" + AMBIGUOUS + ' | "b"')
    errors = []
    for _ in range(2):
        with pytest.raises(InvalidRequest) as raised:
            guides.check(grammar)
        errors.append(str(raised.value))
        began = time.monotonic()
    assert time.monotonic() - began < 1
    assert errors[0] == errors[1]


def test_others_are_checked_while_a_hostile_grammar_compiles(guides: GuideProcesses) -> None:
    hostile = guides.check_soon(regex(NESTED + "b"))
    for at in range(3):
        guides.check_soon(regex(f"a{{{at}}}")).result(COMPILING)
    assert not hostile.done()
    wait([hostile])


def test_a_mask_that_takes_too_long_fails_its_guide_and_no_other(guides: GuideProcesses) -> None:
    good, bad = guides(regex("ab+")), guides(lark('start: "xyz" s\n' + AMBIGUOUS))
    for token in b"xyz":
        bad.take(token)
    for _ in range(2):  # the second time at once
        with pytest.raises(InvalidRequest, match=r"computing a token mask takes more than 0\.5 s"):
            bad.allowed(1000)
    good.take(ord("a"))
    assert good.allowed(1000) == (1 << ord("b")).to_bytes(40, "little")


def test_masks_that_take_too_long_on_average_fail_their_guide(
    bytewise: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    guides = GuideProcesses(lambda: bytewise, VOCAB, masking=0.05)
    guide = guides(regex("a+"))
    for _ in range(1000):
        guide.allowed(1000)
    monkeypatch.setattr(guide_processes, "SUSTAINED", 0.0)
    guide = guides(regex("a+"))
    assert guide.allowed(1000)
    with pytest.raises(InvalidRequest, match="ms on average; simplify"):
        any(guide.allowed(1000) == b"" for _ in range(100_000))


def test_processes_of_grammars_end_with_their_last_guide(bytewise: Tokenizer) -> None:
    before = set(forked())
    guides = GuideProcesses(lambda: bytewise, VOCAB)
    guides.check(regex("a"))
    (program,) = set(forked()) - before
    kept = guides(regex("first"))
    for at in range(CACHED_GRAMMARS + 3):
        guides(regex(f"b{{{at}}}"))
    assert until(lambda: len(forked(program)) == CACHED_GRAMMARS + 1)  # one is not cached any more, but in use
    assert kept.allowed(1000) == (1 << ord("f")).to_bytes(40, "little")
    del kept
    assert until(lambda: len(forked(program)) == CACHED_GRAMMARS)
    del guides
    gc.collect()
    assert until(lambda: program not in forked())


def test_the_program_is_started_again_if_it_was_killed(bytewise: Tokenizer) -> None:
    before = set(forked())
    guides = GuideProcesses(lambda: bytewise, VOCAB)
    guides.check(regex("a"))
    (program,) = set(forked()) - before
    os.kill(program, signal.SIGKILL)
    guides.check(regex("b"))
    assert program not in forked()


def test_a_program_that_cannot_start_is_an_error_of_the_request(
    bytewise: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide_processes.sys, "executable", "/bin/false")
    with pytest.raises(Exception, match="the process that compiles grammars does not start"):
        GuideProcesses(lambda: bytewise, VOCAB).check(regex("a"))


def test_all_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    folder = byte_tokenizer.save(tmp_path)
    command = [sys.executable, "-c", CHILD, str(folder), regex("a"), regex(NESTED)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "checked\n"
        (program,) = forked(parent.pid)
        assert until(lambda: len(forked(program)) == 2)  # one has a guide, and one compiles
        processes = [program, *forked(program)]
        parent.kill()
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))


@pytest.mark.parametrize(
    "grammar",
    [
        json_schema(
            {"$ref": "#/$defs/a0", "$defs": {f"a{n}": {"items": {"$ref": f"#/$defs/a{n + 1}"}} for n in range(2000)}}
        ),
        regex("[" * 5000 + "a" + "]" * 5000),
        lark_or_gbnf("start: " + "(" * 500 + '"a"' + ")" * 500),
        lark_or_gbnf("start: " + "[" * 60 + '"a"' + "]" * 60),
        lark_or_gbnf("start: T\nT: " + "~(" * 500 + '"a"' + ")" * 500),
        regex("(?:" * 300 + "a" + ")*" * 300),
    ],
    ids=["references", "classes", "brackets", "options", "negations", "stars"],
)
def test_nested_grammars_are_read_or_refused_in_time(guides: GuideProcesses, grammar: str) -> None:
    began = time.monotonic()
    with suppress(InvalidRequest):
        guides.check(grammar)
    assert time.monotonic() - began < 2 * (COMPILING + MASKING)


def test_time_that_a_guide_process_does_not_run_is_not_blamed_on_the_grammar(guides: GuideProcesses) -> None:
    guide = guides(regex("[xy]+"))
    mask = guide.allowed(1000)
    with stopped(guide._process._id, 1.2 * MASKING):
        assert guide.allowed(1000) == mask
    assert guide.allowed(1000) == mask


def test_a_guide_process_that_never_answers_is_ended_and_fails_its_requests_alone(
    guides: GuideProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide_processes, "SHORTEST_PATIENCE", 0.1)
    monkeypatch.setattr(guide_processes, "PATIENCE", 0.2)
    guide, other = guides(regex("[xz]+")), guides(regex("a"))
    process = guide._process._id
    os.kill(process, signal.SIGSTOP)
    for _ in range(2):
        with pytest.raises(RequestFailed, match="it got no processor time; send the request again"):
            guide.allowed(1000)
    assert not Path(f"/proc/{process}").exists()
    assert other.allowed(1000) == (1 << ord("a")).to_bytes(40, "little")
    assert guides(regex("[xz]+")).allowed(1000)


@pytest.mark.parametrize(
    ("number", "error", "reason"),
    [
        (signal.SIGKILL, RequestFailed, r"status -9\) because memory ran out"),
        (signal.SIGSEGV, InvalidRequest, "more stack than there is; simplify it"),
        (signal.SIGABRT, InvalidRequest, "takes more than 128 MB"),
        (signal.SIGPROF, InvalidRequest, "takes more than 0.5 s; simplify it"),
    ],
)
def test_only_what_a_grammar_did_is_blamed_on_it(
    guides: GuideProcesses, number: signal.Signals, error: type[RingKVError], reason: str
) -> None:
    guide = guides(regex(f"[ab]{{{number}}}"))
    os.kill(guide._process._id, number)
    with pytest.raises(error, match=reason):
        guide.allowed(1000)


def test_a_tokenizer_that_cannot_be_loaded_leaves_no_process() -> None:
    def load() -> Tokenizer:
        raise RuntimeError("it is broken")

    before, descriptors = set(forked()), len(os.listdir("/proc/self/fd"))
    guides = GuideProcesses(load, VOCAB)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="it is broken"):
            guides.check(regex("a"))
    gc.collect()
    assert set(forked()) <= before
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_a_guide_without_a_token_is_dropped_with_the_next_one(
    guides: GuideProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Call] = []
    send = Link.send
    monkeypatch.setattr(Link, "send", lambda link, message: (sent.append(message), send(link, message)))
    for _ in range(3):
        guides(regex("cancelled"))
    assert [call.dropped for call in sent if isinstance(call, Make)] == [(), (0,), (1,)]


def test_a_dropped_guide_is_not_kept(bytewise: Tokenizer) -> None:
    made: dict[int, TokenGuide] = {}
    local = Guides(lambda: bytewise, VOCAB)
    for number, dropped in ((0, ()), (1, (0,)), (2, ())):
        guide_server._reply(Make(1.0, number, regex("a"), dropped), local, made)
    assert list(made) == [1, 2]


def test_a_grammar_beyond_the_queue_is_refused_and_a_cancelled_one_leaves_it(
    bytewise: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    guides, go, checked = GuideProcesses(lambda: bytewise, VOCAB), Event(), list[str]()
    monkeypatch.setattr(guides, "_try", lambda grammar, _: checked.append(grammar) or waited(go))
    monkeypatch.setattr(guide_processes, "WAITING", 3)
    futures = [guides.check_soon(str(at)) for at in range(5)]  # two are checked, and three wait
    with pytest.raises(QueueFull, match="3 grammars wait to be checked, at most 3 may; send it again in 6 s") as full:
        guides.check_soon("5")
    assert full.value.retry_after == 6
    guides.give_up(futures[3])
    assert futures[3].cancelled()
    futures.append(guides.check_soon("6"))
    go.set()
    wait(futures)
    assert sorted(checked) == ["0", "1", "2", "4", "6"]
    assert until(lambda: not guides._unchecked)


def test_closing_ends_the_checks_that_run_and_those_that_wait(bytewise: Tokenizer) -> None:
    guides = GuideProcesses(lambda: bytewise, VOCAB)
    futures = [guides.check_soon(regex(NESTED + letter)) for letter in "cdef"]
    assert until(lambda: sum(check._process is not None for check in guides._unchecked.values()) == 2)
    began = time.monotonic()
    guides.close()
    futures.append(guides.check_soon(regex("a")))
    assert [type(future.exception()) for future in futures] == [Draining] * 5
    assert time.monotonic() - began < 5  # a check may take that long


def test_a_check_that_begins_while_another_thread_closes_ends(bytewise: Tokenizer, monkeypatch) -> None:
    guides = GuideProcesses(lambda: bytewise, VOCAB, compiling=60.0)
    program, submit = guides._program.fork, guides._executor.submit
    forked = Event()
    monkeypatch.setattr(guides._program, "fork", lambda: forked.set() or program())

    def submit_and_close(*call: Any) -> Any:
        future = submit(*call)
        assert forked.wait(10)
        guides.close()  # it does not know the check yet
        return future

    monkeypatch.setattr(guides._executor, "submit", submit_and_close)
    assert isinstance(guides.check_soon(regex(NESTED)).exception(timeout=20), Draining)  # a check may take 60 s


class Broken(Guides):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, grammar: str) -> TokenGuide:
        raise self.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "compiling it takes more than 128 MB, or more stack"),
        (BaseException("a panic"), "cannot be used: compiling it fails in llguidance"),
    ],
)
def test_an_error_in_a_guide_process_is_told_as_what_it_is(error: BaseException, reason: str) -> None:
    ours, theirs = socketpair()
    child = os.fork()
    if child == 0:
        guide_server._child(Link(theirs, CALLS), Broken(error))
    link = Link(ours, REPLIES)
    assert isinstance(link.receive(), GuideReady)
    call = Make(1.0, 0, regex("a"), ())
    link.send(call)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert reason in str(guide_processes._why_ended(call, code))


def test_a_check_that_is_given_up_ends_at_once_and_others_go_on(bytewise: Tokenizer) -> None:
    guides = GuideProcesses(lambda: bytewise, VOCAB)
    hostile = [guides.check_soon(regex(NESTED + letter)) for letter in "gh"]
    following = guides.check_soon(regex("a"))
    assert until(lambda: sum(check._process is not None for check in guides._unchecked.values()) == 2)
    began = time.monotonic()
    guides.give_up(hostile[0])
    assert following.result() is None
    assert time.monotonic() - began < 5  # a check may take that long
    assert not hostile[1].done()
    guides.close()
