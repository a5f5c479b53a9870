"""parent: ends this process with the one that started it."""

import os
from multiprocessing import parent_process
from multiprocessing.connection import wait
from threading import Thread


def exit_with_parent() -> None:
    """Exit at once when the parent ends, even during a long computation. Nothing if `multiprocessing` has no parent."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    Thread(target=watch, name="parent-watch", daemon=True).start()
