"""sandbox: runs a program that a model wrote, with bounded time and memory, without network and files.

The program runs in its own process and an empty folder. The kernel enforces the limits (setrlimit). A network namespace
removes the network if the system allows it; an audit hook always refuses sockets and other processes. The sandbox
contains a model's mistakes. It does not stop an attacker.

A program scores 1 if it passes its problem's tests, otherwise 0. HumanEval: arXiv 2107.03374.
"""

import re
import subprocess
import sys
import tempfile

CODE_BLOCK = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
IMPORTS = (
    "from typing import *\nfrom collections import *\nfrom itertools import *\nfrom functools import *\n"
    "from heapq import *\nfrom bisect import *\nfrom math import *\nfrom builtins import pow\n"
    "import collections, itertools, functools, heapq, bisect, math, re, string, random\n"
)
SECONDS, BYTES = 10.0, 1 << 30
END = b"at its end"  # written to standard output after the program's last line
BOOT = (
    f"END = {END!r}"
    + """
import ctypes, os, resource, sys
seconds, memory = int(sys.argv[1]), int(sys.argv[2])
for what, most in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, memory), (resource.RLIMIT_FSIZE, 0),
                   (resource.RLIMIT_CORE, 0)):
    resource.setrlimit(what, (most, most))
NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
ctypes.CDLL(None).unshare(NEW_USER | NEW_NETWORK)
program = compile(sys.stdin.read(), "answer", "exec")
FORBIDDEN = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.kill", "ctypes.",
             "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
             "os.chown", "shutil.")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
def refuse(event, arguments):
    writes = event == "open" and arguments[2] & WRITING
    if writes or event.startswith(FORBIDDEN):
        raise PermissionError(event + " is not allowed here")
sys.addaudithook(refuse)
exec(program, {"__name__": "answer"})
os.write(1, END)
"""
)


def passes(program: str, seconds: float = SECONDS, memory: int = BYTES) -> bool:
    """Whether a Python program runs to its end without an error, within these limits of seconds and bytes.

    A program that exits before its end fails, whatever its status. Code under `__name__ == "__main__"` does not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-B", "-c", BOOT, str(max(1, round(seconds))), str(memory)],
                input=program.encode(errors="replace"),
                capture_output=True,
                cwd=folder,
                env={},
                timeout=seconds + 2,  # for starting; the kernel stops computation earlier
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0 and END in done.stdout


def solves(text: str, given: str, test: str) -> float:
    """Score an answer: its first block of code, or all of it if it has none.

    given: code to prepend, unless the answer repeats its first function or class. test: code that raises on an error.
    """
    block = CODE_BLOCK.search(text)
    code = block[1] if block else text
    defined = re.search(r"^(class|def) \w+", given, re.MULTILINE)
    program = code if (defined[0] if defined else given) in code else given + code
    return float(passes(f"{IMPORTS}\n{program}\n\n{test}\n"))
