"""ringkv, the command: how the program begins and ends. What it can do is in `application`."""

import atexit
import os
import sys


def main() -> None:
    status = _run()
    if "torch" in sys.modules:
        atexit._run_exitfuncs()
        os._exit(status)  # to take torch apart object by object would keep the shell waiting for half a second
    sys.exit(status)


def _run() -> int:
    """The exit status. Ctrl-C gets its one line even while the application is still being imported."""
    try:
        from ringkv.cli.application import run
    except KeyboardInterrupt:
        print("ringkv: interrupted", file=sys.stderr)
        return 130  # `failures.INTERRUPTED`, which is not there yet
    return run(sys.argv[1:])
