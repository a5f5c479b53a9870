"""Entry point of the `ringkv` command; the commands are in `application`."""

import atexit
import os
import signal
import sys


def main() -> None:
    """Run the command line, and exit. Ctrl-C prints one line even while the application is being imported."""
    try:
        from ringkv.cli.application import run
    except KeyboardInterrupt:
        print("ringkv: interrupted", file=sys.stderr)
        sys.exit(130)  # `failures.INTERRUPTED`, which may not be imported yet
    status = run(sys.argv[1:])
    if "torch" in sys.modules:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C in an exit function ends the process without a traceback
        atexit._run_exitfuncs()
        os._exit(status)  # skips torch's teardown, which takes half a second
    sys.exit(status)
