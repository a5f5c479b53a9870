"""The program of guide processes: python -m ringkv.text.guide_server SOCKET

It loads the tokens of one model, then forks a process for each socket that it is sent. So a process starts in
milliseconds and knows the model's tokens, and the program itself never reads a grammar. A forked process answers the
calls of `guide_messages` within limits of processor time and memory. The kernel ends it at a limit, whatever it does,
and an overflow of the stack or an abort of llguidance ends nothing else. The program then sends what ended it. All of
them end when their sockets are closed.
"""

import os
import resource
import signal
import socket
import sys
from contextlib import closing, suppress
from time import thread_time

from ringkv.base.errors import RingKVError
from ringkv.base.failure import describe
from ringkv.text import guide_messages as messages
from ringkv.text.guide import STACK, Guides, TokenGuide
from ringkv.wire.link import Link, LinkClosed

MEMORY = 128 << 20  # bytes that one grammar may take, besides the stack
BROKEN, OUT_OF_MEMORY = 1, 3  # exit statuses: after an error of llguidance's own, and after a MemoryError
OPTIONAL_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # meant for the server, which may have work to finish


def main(descriptor: int) -> None:
    for number in OPTIONAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    children: dict[int, Link] = {}
    signal.signal(signal.SIGCHLD, lambda *_: _report(children))
    control = socket.socket(fileno=descriptor)
    vocabulary = Link(control.dup(), messages.VOCABULARY).receive()
    guides = Guides(lambda: vocabulary, vocabulary.size)
    guides.load()
    while True:
        sent, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not sent:
            return
        link = Link(socket.socket(fileno=descriptors[0]), messages.CALLS)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # until the child is known
        child = os.fork()
        if child == 0:
            control.close()
            for other in children.values():
                other.close()
            _child(link, guides)
        children[child] = link
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _report(children: dict[int, Link]) -> None:
    """Send what ended each process that has ended."""
    with suppress(ChildProcessError):  # none is left
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with closing(children.pop(ended[0])) as link, suppress(LinkClosed):
                link.send(messages.Ended(os.waitstatus_to_exitcode(ended[1])))


def _child(link: Link, guides: Guides) -> None:
    """Answer calls until the link is closed, and exit."""
    status = BROKEN
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a panic's message may quote a grammar
        _limit_memory()
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        link.send(messages.GuideReady(os.getpid()))
        _serve(link, guides)
    except (LinkClosed, OSError):
        status = 0
    except MemoryError:
        status = OUT_OF_MEMORY
    finally:
        os._exit(status)


def _serve(link: Link, guides: Guides) -> None:
    made: dict[int, TokenGuide] = {}
    while True:
        call = link.receive()
        signal.setitimer(signal.ITIMER_PROF, call.seconds)
        try:
            reply = _reply(call, guides, made)
        except RingKVError as error:
            reply = messages.GuideFailed(describe(error))
        signal.setitimer(signal.ITIMER_PROF, 0)
        link.send(reply)


def _reply(call: messages.Call, guides: Guides, made: dict[int, TokenGuide]) -> messages.Reply:
    began = thread_time()  # the process's own is coarse while a timer runs, and masks need no other thread
    for number in () if isinstance(call, messages.Try) else call.dropped:
        made.pop(number, None)
    match call:
        case messages.Make():
            made[call.guide] = guides(call.grammar)
        case messages.Try():
            guides.try_out(made[call.guide])
        case messages.Next():
            guide = made[call.guide]
            for token in call.taken:
                guide.take(token)
            return messages.Mask(guide.allowed(call.left), guide.is_cut, thread_time() - began)
    return messages.Done()


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[5]) * resource.getpagesize()
    except OSError:
        return  # only Linux counts this memory
    limit = now + STACK + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


if __name__ == "__main__":
    main(int(sys.argv[1]))
