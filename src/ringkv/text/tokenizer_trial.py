"""A trial: a tokenizer.json is loaded in another process first, as a hostile file can end the process that does it.

A few bytes of a character map make the `tokenizers` library request 8 GB, and it aborts if it does not get them. A file
that passed is remembered by its digest in the cache folder, so only the first load of a file takes 0.2 s more.
"""

import hashlib
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from ringkv.machine import folders

MEMORY, SECONDS = 2 << 30, 30  # bytes and processor time; 33 MB with 262,144 tokens take 0.4 GB and 2 s


def fault(path: Path, passed: Path) -> str | None:
    """Return why the file cannot be loaded safely; None if it can. Errors that loading it raises are no fault.

    passed: the folder of digests of files that passed. Writes to it if it can.
    """
    mark = passed / hashlib.sha256(path.read_bytes()).hexdigest()
    with suppress(OSError):  # a folder above it that this user may not enter
        if mark.exists():
            return None
    command = [sys.executable, "-P", __file__, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    status = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ).returncode
    if status == -signal.SIGXCPU:
        return f"loading it takes more than {SECONDS} s"
    if status < 0:
        name = signal.Signals(-status).name
        return f"loading it takes more than {MEMORY >> 30} GB, or ends the process with {name}"
    if status == 0:
        with suppress(OSError):  # then it is tried again on the next start
            folders.make(passed)
            mark.touch()
    return None


def _load(path: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    import tokenizers

    with suppress(BaseException):  # the process that loads it next reports the same error
        tokenizers.Tokenizer.from_file(path).encode("")


if __name__ == "__main__":
    _load(sys.argv[1])
