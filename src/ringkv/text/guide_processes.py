"""GuideProcesses: guides of grammars that are not trusted, one process for each grammar.

The time and memory that llguidance needs for a grammar cannot be known before, and its own limits do not bound them: a
mask of 6 kB of ambiguous rules takes 40 s. So each grammar is compiled, and its masks are computed, in a process that
ends at a limit (`guide_server`). Its requests then fail, and no others.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TypeVar

from ringkv.base.errors import Draining, InvalidRequest, QueueFull, RequestFailed, RingKVError
from ringkv.base.failure import Failure, describe, revive
from ringkv.text import guide_messages as messages
from ringkv.text.grammar import check_text
from ringkv.text.guide import CACHED_GRAMMARS, Tokens
from ringkv.text.guide_server import BROKEN, MEMORY, OUT_OF_MEMORY
from ringkv.wire.link import Link, LinkClosed

T = TypeVar("T")

COMPILING, MASKING = 5.0, 1.0  # seconds of processor time to compile a grammar, and for a mask
SUSTAINED = 0.05  # seconds of them for each mask of an answer on average; other answers wait for a mask
CHECKS = 2  # grammars that are checked at once
WAITING = 64  # grammars that may wait for their check
CACHED_CHECKS = 64  # grammars whose check is remembered
PATIENCE, SHORTEST_PATIENCE = 20, 10.0  # times a call's processor time, and seconds, to wait for its reply
ENDING = 5.0  # seconds to wait for the program after its socket is closed
# How a process ends if its stack overflows, or if it gets no memory.
TOO_LARGE = (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGILL, -signal.SIGTRAP, OUT_OF_MEMORY)


class GuideProcesses:
    """Makes guides for one model's tokens; a `base.guide.MakeGuide`. Threads may share it.

    load: loads the tokenizer, called for the first grammar. vocab: the model's vocabulary size.
    compiling, masking: seconds of processor time to compile a grammar, and for a mask.
    """

    def __init__(
        self, load: Callable[[], Tokens], vocab: int, compiling: float = COMPILING, masking: float = MASKING
    ) -> None:
        self._compiling, self._masking = compiling, masking
        self._program = _Program(partial(_vocabulary, load, vocab))
        self._processes: OrderedDict[str, _Process] = OrderedDict()
        self._lock = threading.Lock()
        self._refusals: OrderedDict[str, tuple[Failure | None]] = OrderedDict()  # (None,): not refused
        self._executor = ThreadPoolExecutor(CHECKS, "grammars")
        self._unchecked: dict[Future[None], _Check] = {}
        self._is_closed = False

    def check(self, grammar: str) -> None:
        """Raise InvalidRequest for a grammar that is invalid, or exceeds a limit at its first tokens."""
        self._check(_Check(grammar))

    def check_soon(self, grammar: str) -> "Future[None]":
        """Check a grammar in a thread, until `give_up`. The future's error is that of `check`; Draining after `close`.

        Raises QueueFull.
        """
        waiting = len(self._unchecked) - CHECKS
        if waiting >= WAITING:
            seconds = self._compiling + self._masking
            raise QueueFull(
                f"the queue is full: {waiting} grammars wait to be checked, at most {WAITING} may; "
                f"send it again in {seconds:g} s",
                seconds,
            )
        check = _Check(grammar)
        future = self._executor.submit(self._check, check)
        self._unchecked[future] = check
        future.add_done_callback(lambda _: self._unchecked.pop(future, None))
        if self._is_closed:  # perhaps before `close` could see this check
            check.end()
        return future

    def give_up(self, future: "Future[None]") -> None:
        """End a check that waits or runs, if it is not done."""
        if check := self._unchecked.get(future):
            check.end()
        future.cancel()

    def close(self) -> None:
        """End all checks, with Draining, and begin no more."""
        self._is_closed = True
        for check in tuple(self._unchecked.values()):
            check.end()

    def _check(self, check: "_Check") -> None:
        """Raise InvalidRequest for a grammar that is refused, and Draining if the check is ended."""
        grammar, known = check.grammar, None
        try:
            if not (self._is_closed or check.has_ended):
                check_text(grammar)
                with self._lock:
                    known = self._refusals.pop(grammar, None)
                known = known or (self._try(grammar, check),)
                self._keep(self._refusals, grammar, known, CACHED_CHECKS)
        except RingKVError:
            if not check.has_ended:
                raise
        if known is None:
            raise Draining("the grammar is not checked because the server is stopping; send it to another server", 1)
        if known[0]:
            raise revive(known[0])

    def _keep(self, recent: "OrderedDict[str, T]", grammar: str, value: T, limit: int) -> None:
        """Keep a value for a grammar. The least recently used leaves if there are more than `limit`."""
        with self._lock:
            recent[grammar] = value
            while len(recent) > limit:
                recent.popitem(last=False)

    def __call__(self, grammar: str) -> "RemoteGuide":
        """Return the grammar's guide.

        Raises InvalidRequest if the grammar does not parse, exceeds a limit, or has a keyword that is not enforced.
        """
        check_text(grammar)
        process = self._process(grammar)
        return RemoteGuide(process, process.make(grammar, self._compiling), self._masking)

    def _try(self, grammar: str, check: "_Check") -> Failure | None:
        """Return why a grammar is refused; None if it is not. Raises the error of a process that crashed."""
        process = self._program.fork()
        check.run(process)
        try:
            process.call(messages.Try(self._masking, process.make(grammar, self._compiling)))
        except _Crashed:
            raise
        except InvalidRequest as error:
            return describe(error)
        return None

    def _process(self, grammar: str) -> "_Process":
        """Return the process of a grammar. The least recently used ends once its last guide is gone."""
        with self._lock:
            process = self._processes.pop(grammar, None)
        if process is None or process.failure:
            process = self._program.fork()
        self._keep(self._processes, grammar, process, CACHED_GRAMMARS)
        return process


class RemoteGuide:
    """A `base.guide.Guide` in a guide process. Tokens are sent with the next call.

    A mask may take `seconds` of processor time, and `SUSTAINED` on average.
    """

    def __init__(self, process: "_Process", number: int, seconds: float) -> None:
        self._process, self._number, self._seconds = process, number, seconds
        self._taken: list[int] = []
        self._left = seconds  # for the next mask; what a quick mask leaves is saved up
        self.is_cut = False
        weakref.finalize(self, process.drop, number).atexit = False

    def allowed(self, left: int) -> bytes:
        taken, self._taken = tuple(self._taken), []
        mask = self._process.next(self._seconds, self._number, taken, left)
        self._left = min(self._seconds, self._left + SUSTAINED) - mask.seconds
        if self._left < 0:
            raise InvalidRequest(
                "the grammar is too large or ambiguous: computing a token mask takes more than "
                f"{SUSTAINED * 1000:g} ms on average; simplify it",
                "grammar",
            )
        self.is_cut = mask.is_cut
        return mask.tokens

    def take(self, token: int) -> None:
        self._taken.append(token)


class _Check:
    """The check of a grammar, which waits or runs."""

    def __init__(self, grammar: str) -> None:
        self.grammar = grammar
        self.has_ended = False
        self._process: _Process | None = None

    def run(self, process: "_Process") -> None:
        """Note the process that runs it, which is ended if the check is."""
        self._process = process
        if self.has_ended:
            process.end()

    def end(self) -> None:
        self.has_ended = True
        self.grammar = ""  # the executor keeps calls that were cancelled
        if self._process:
            self._process.end()


class _Crashed(InvalidRequest):
    """A grammar ended its process, but not at a time limit."""


class _Process:
    """One guide process. It ends when this object is deleted, which closes the link."""

    def __init__(self, link: Link, id: int) -> None:
        self._link, self._id = link, id
        self._lock = threading.Lock()
        self._numbers = count()
        self._dropped: list[int] = []
        self.failure: RingKVError | None = None  # why the process ended

    def make(self, grammar: str, seconds: float) -> int:
        """Make a guide and return its number."""
        number = next(self._numbers)
        self.call(messages.Make(seconds, number, grammar, self._take_dropped()))
        return number

    def next(self, seconds: float, guide: int, taken: tuple[int, ...], left: int) -> messages.Mask:
        mask = self.call(messages.Next(seconds, guide, taken, left, self._take_dropped()))
        assert isinstance(mask, messages.Mask)
        return mask

    def drop(self, guide: int) -> None:
        self._dropped.append(guide)

    def _take_dropped(self) -> tuple[int, ...]:
        taken = []
        with suppress(IndexError):  # other threads take them too
            while True:
                taken.append(self._dropped.pop())
        return tuple(taken)

    def end(self) -> None:
        """End the process at once. Its call, if it has any, fails."""
        with suppress(ProcessLookupError):
            os.kill(self._id, signal.SIGKILL)

    def call(self, call: messages.Call) -> messages.Reply:
        """Return the reply. Raises the error that it carries, or why the process ended.

        That is InvalidRequest if the grammar exceeds a limit, else RequestFailed.
        """
        with self._lock:
            if self.failure:
                raise self.failure
            reply = self._reply(call)
            if isinstance(reply, messages.Ended):
                self.failure = _why_ended(call, reply.code)
                raise self.failure
        if isinstance(reply, messages.GuideFailed):
            raise revive(reply.failure)
        return reply

    def _reply(self, call: messages.Call) -> messages.Reply:
        with suppress(LinkClosed):  # if the process has ended, the reply says so
            self._link.send(call)
        if not self._link.is_waiting(max(SHORTEST_PATIENCE, PATIENCE * call.seconds)):
            self.end()
        with suppress(LinkClosed):  # the program has ended too
            if self._link.is_waiting(ENDING):
                reply: messages.Reply = self._link.receive()
                return reply
        return messages.Ended(-signal.SIGKILL)


def _why_ended(call: messages.Call, code: int) -> RingKVError:
    if code == -signal.SIGPROF:
        return InvalidRequest(
            f"the grammar is too large or ambiguous: {call.purpose} takes more than {call.seconds:g} s; simplify it",
            "grammar",
        )
    if code in TOO_LARGE:
        return _Crashed(
            f"the grammar is too large or nested too deeply: {call.purpose} takes more than {MEMORY >> 20} MB, "
            "or more stack than there is; simplify it",
            "grammar",
        )
    if code == BROKEN:
        return _Crashed(f"the grammar cannot be used: {call.purpose} fails in llguidance; simplify it", "grammar")
    return RequestFailed(
        f"the process of the request's grammar was ended (status {code}) because memory ran out or it got no "
        "processor time; send the request again, and give the server more of them"
    )


class _Program:
    """`guide_server` as a child process. It is started with the first grammar, and again if it has ended."""

    def __init__(self, vocabulary: Callable[[], messages.GuideVocabulary]) -> None:
        self._vocabulary = vocabulary
        self._control: socket.socket | None = None
        self._stop: Callable[[], object] = bool  # stops what was started
        self._lock = threading.Lock()

    def fork(self) -> _Process:
        """Return a new guide process. Raises RequestFailed if there can be none."""
        with self._lock:
            process = self._forked() or self._forked()  # the program may have been killed since the last grammar
        if process is None:
            raise RequestFailed("the process that compiles grammars does not start; see the log, and free memory")
        return process

    def _forked(self) -> _Process | None:
        ours, theirs = socket.socketpair()
        link = Link(ours, messages.REPLIES)
        try:
            with theirs:
                self._control = self._control or self._start()
                socket.send_fds(self._control, [b"f"], [theirs.fileno()])
            reply = link.receive()
            if isinstance(reply, messages.GuideReady):
                return _Process(link, reply.process)
        except BaseException as error:
            self._control = None
            self._stop()
            if not isinstance(error, LinkClosed | OSError):
                raise
        return None

    def _start(self) -> socket.socket:
        vocabulary = self._vocabulary()  # before there is anything to stop
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "ringkv.text.guide_server", str(theirs.fileno())]
        with theirs:
            program = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=[theirs.fileno()],
                process_group=0,  # a terminal's signals are not for it
            )
        self._stop = weakref.finalize(self, _stop, ours, program)
        Link(ours.dup(), messages.VOCABULARY).send(vocabulary)
        return ours


def _stop(control: socket.socket, program: "subprocess.Popen[bytes]") -> None:
    control.close()
    try:
        program.wait(ENDING)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def _vocabulary(load: Callable[[], Tokens], vocab: int) -> messages.GuideVocabulary:
    tokenizer = load()
    return messages.GuideVocabulary(tokenizer.to_json(), tokenizer.eos_ids, vocab)
