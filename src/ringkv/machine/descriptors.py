"""How many files and sockets this process may have open."""

import sys


def allow_descriptors(wanted: int) -> int:
    """Raise this process's limit of open descriptors to `wanted` if the system permits; return the limit it has then.

    Programs start with 1,024 on most systems and may raise it themselves.
    """
    if sys.platform == "win32":
        return wanted
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
