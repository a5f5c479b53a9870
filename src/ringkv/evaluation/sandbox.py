"""sandbox: a program that a model wrote, run where it can do little: bounded time and memory, no network, no files.

The program has a process and an empty folder of its own. Limits are the kernel's (setrlimit); the network is taken away
by a namespace of its own where the system allows that, and sockets and other processes by an audit hook in any case. It
keeps a model's mistakes from doing harm; it is no wall against an attacker.
"""

import subprocess
import sys
import tempfile

SECONDS, BYTES = 10.0, 1 << 30
END = b"at its end"  # what a program that got there has on its standard output, whatever else it printed
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
    """Whether a Python program runs to its end without an error, within so many seconds and bytes.

    One that leaves before, with whatever status, does not; what stands under `__name__ == "__main__"` is not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-B", "-c", BOOT, str(max(1, round(seconds))), str(memory)],
                input=program.encode(errors="replace"),
                capture_output=True,
                cwd=folder,
                env={},
                timeout=seconds + 2,  # to start; the kernel ends it sooner if it computes
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    return done.returncode == 0 and END in done.stdout
