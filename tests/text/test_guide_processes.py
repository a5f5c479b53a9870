"""Guides in processes of their own: the same masks, and limits of time and memory that hold whatever a grammar does."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import socketpair
from threading import Timer
from time import process_time

import pytest

from ringkv.base.errors import InvalidRequest, RequestFailed, RingKVError
from ringkv.text import guide_processes, guide_server
from ringkv.text.grammar import choice, json_schema, lark, lark_or_gbnf, regex
from ringkv.text.guide import CACHED_GRAMMARS, Guides, TokenGuide
from ringkv.text.guide_messages import CALLS, REPLIES, Call, GuideReady, Make
from ringkv.text.guide_processes import GuideProcesses
from ringkv.text.tokenizer import Tokenizer
from ringkv.wire.link import Link
from tests import byte_tokenizer
from tests.text.guide_running import FOREVER, NESTED, VOCAB, exists, forked, program_of, running, until

END = 257
COMPILING, MASKING = 1.0, 0.5
SCHEMA = json_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
AMBIGUOUS = "s: " + "s s | " * 1000 + '"a"'  # compiling it takes 0.3 s; its masks 1.7 s with 256 tokens
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
    yield from running(bytewise, FOREVER, FOREVER)


@contextmanager
def stopped(process: int, seconds: float) -> Iterator[None]:
    """Stop a process, and let it continue after so many seconds."""
    os.kill(process, signal.SIGSTOP)
    timer = Timer(seconds, os.kill, (process, signal.SIGCONT))
    timer.start()
    yield
    timer.join()


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
    ("grammar", "reason", "limit"),
    [
        (lark("start: s\n" + AMBIGUOUS), r"mask.* 0\.5 s", MASKING),
        (lark('start: "x" s\n' + AMBIGUOUS), r"mask.* 0\.5 s", MASKING),
        (regex(NESTED), r"compiling.* 1 s", COMPILING),
        (regex("a{1,3"), "regex", MASKING),
    ],
    ids=["ambiguous", "ambiguous later", "nested", "invalid"],
)
def test_a_grammar_is_refused_at_a_limit_with_its_number(
    guides: GuideProcesses, grammar: str, reason: str, limit: float
) -> None:
    before = process_time()
    with pytest.raises(InvalidRequest, match=reason) as refused:
        guides.check(grammar)
    assert refused.value.param == "grammar"
    assert process_time() - before < 0.5 * limit  # the work is another process's
    guides.check(regex("a"))


def test_a_grammar_is_refused_at_the_limit_of_memory(patient_guides: GuideProcesses) -> None:
    with pytest.raises(InvalidRequest, match="128 MB"):
        patient_guides.check(regex(REPEATED))
    patient_guides.check(regex("a"))


def test_a_refusal_is_remembered(guides: GuideProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = regex("a{1,4")
    with pytest.raises(InvalidRequest) as first:
        guides.check(grammar)
    monkeypatch.setattr(guides._program, "fork", lambda: pytest.fail("it is checked again"))
    with pytest.raises(InvalidRequest) as second:
        guides.check(grammar)
    assert str(first.value) == str(second.value)


def test_a_mask_that_takes_too_long_fails_its_guide_and_no_other(guides: GuideProcesses) -> None:
    good, bad = guides(regex("ab+")), guides(lark('start: "xyz" s\n' + AMBIGUOUS))
    for token in b"xyz":
        bad.take(token)
    for _ in range(2):  # the second time at once
        with pytest.raises(InvalidRequest, match=r"0\.5 s"):
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
    with pytest.raises(InvalidRequest, match="0 ms on average"):
        any(guide.allowed(1000) == b"" for _ in range(100_000))


def test_processes_of_grammars_end_with_their_last_guide(bytewise: Tokenizer) -> None:
    guides = GuideProcesses(lambda: bytewise, VOCAB)
    kept = guides(regex("first"))
    program, first = program_of(guides), kept._process._id
    others = [guides(regex(f"b{{{at}}}"))._process._id for at in range(CACHED_GRAMMARS + 3)]
    until(lambda: not any(exists(process) for process in others[:3]))
    assert all(exists(process) for process in [first, *others[3:]])  # the first is not cached, but in use
    assert kept.allowed(1000) == (1 << ord("f")).to_bytes(40, "little")
    del kept
    until(lambda: not exists(first))
    assert sorted(forked(program)) == sorted(others[3:])
    del guides
    gc.collect()
    until(lambda: not any(exists(process) for process in [program, *others]))


def test_the_program_is_started_again_if_it_was_killed(bytewise: Tokenizer) -> None:
    guides = GuideProcesses(lambda: bytewise, VOCAB)
    guides.check(regex("a"))
    program = program_of(guides)
    os.kill(program, signal.SIGKILL)
    guides.check(regex("b"))
    assert program_of(guides) != program
    assert not exists(program)


def test_a_program_that_cannot_start_is_an_error_of_the_request(
    bytewise: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide_processes.sys, "executable", "/bin/false")
    with pytest.raises(RequestFailed, match="does not start"):
        GuideProcesses(lambda: bytewise, VOCAB).check(regex("a"))


def test_all_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    folder = byte_tokenizer.save(tmp_path)
    command = [sys.executable, "-c", CHILD, str(folder), regex("a"), regex(NESTED)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "checked\n"
        (program,) = forked(parent.pid)
        until(lambda: len(forked(program)) == 2)  # one has a guide, and one compiles
        processes = [program, *forked(program)]
        parent.kill()
    until(lambda: not any(exists(process) for process in processes))


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
    before = process_time()
    with suppress(InvalidRequest):
        guides.check(grammar)
    assert process_time() - before < COMPILING + MASKING  # which are the limits of the other process


def test_time_that_a_guide_process_does_not_run_is_not_blamed_on_the_grammar(guides: GuideProcesses) -> None:
    guide = guides(regex("[xy]+"))
    mask = guide.allowed(1000)
    with stopped(guide._process._id, 1.2 * MASKING):
        assert guide.allowed(1000) == mask
    assert guide.allowed(1000) == mask


def test_a_guide_process_that_never_answers_is_ended_and_fails_its_requests_alone(
    guides: GuideProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide, other = guides(regex("[xz]+")), guides(regex("a"))
    process = guide._process._id
    os.kill(process, signal.SIGSTOP)
    with monkeypatch.context() as impatient:
        impatient.setattr(guide_processes, "SHORTEST_PATIENCE", 0.1)
        impatient.setattr(guide_processes, "PATIENCE", 0.2)
        for _ in range(2):
            with pytest.raises(RequestFailed, match="no processor time"):
                guide.allowed(1000)
    assert not exists(process)
    assert other.allowed(1000) == (1 << ord("a")).to_bytes(40, "little")
    assert guides(regex("[xz]+")).allowed(1000)


@pytest.mark.parametrize(
    ("number", "error", "reason"),
    [
        (signal.SIGKILL, RequestFailed, "status -9"),
        (signal.SIGSEGV, InvalidRequest, "stack"),
        (signal.SIGABRT, InvalidRequest, "128 MB"),
        (signal.SIGPROF, InvalidRequest, r"0\.5 s"),
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

    guides, descriptors = GuideProcesses(load, VOCAB), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(RuntimeError, match="it is broken"):
            guides.check(regex("a"))
    gc.collect()
    assert guides._program._control is None
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


class Broken(Guides):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, grammar: str) -> TokenGuide:
        raise self.error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "128 MB"),
        (BaseException("a panic"), "llguidance"),
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
