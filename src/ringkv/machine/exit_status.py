"""exit_status: how a process ended, in words."""

import signal


def described(status: int | None) -> str:
    """Return what happened to a process with this exit status, negative if a signal ended it."""
    if status is None or status >= 0:
        return f"ended (exit status {status})"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed ({name}); memory may have run out" if -status == signal.SIGKILL else f"was ended by {name}"
