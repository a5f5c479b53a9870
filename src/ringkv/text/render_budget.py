"""RenderBudget: the CPU time and the memory that one rendering of a chat template may take.

A template is a program from the internet and may loop forever or double a string until memory is full. Python cannot
stop a thread, so the sandbox reports each turn of a loop, each call and each new value here.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateError
from jinja2.utils import Namespace

SECONDS = 5.0  # of CPU time, not of waiting for other threads
CHARACTERS = 256 << 20  # created by one rendering, in its result and in what it throws away
OBJECT = 64  # characters that an object counts for


class TemplateTooExpensive(TemplateError):
    """Templates cannot catch it."""


class RenderBudget:
    """seconds: CPU time of this thread. characters: the total that may be created."""

    def __init__(self, seconds: float = SECONDS, characters: int = CHARACTERS) -> None:
        self._seconds, self._deadline = seconds, time.thread_time() + seconds
        self._characters, self._left = characters, characters

    def tick(self) -> None:
        if time.thread_time() > self._deadline:
            raise TemplateTooExpensive(f"it computed for over {self._seconds:g} s; shorten or correct the template")

    def charge(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise TemplateTooExpensive(
                f"it made text of over {self._characters:,} characters; shorten or correct the template"
            )

    def charge_value(self, value: Any) -> None:
        """Charge a new value: a text by its length, a list by its entries, which are only referred to."""
        if isinstance(value, str | bytes):
            self.charge(len(value))
        elif isinstance(value, list | tuple | dict | set):
            self.charge(OBJECT + 8 * len(value))

    def charge_nested(self, value: Any) -> int:
        """Charge the text and objects that writing the value would visit, however often each is referred to.

        Returns the characters that they count for.
        """
        pending, before = [value], self._left
        while pending:
            item = pending.pop()
            self.charge(OBJECT + (len(item) if isinstance(item, str | bytes) else 0))
            if isinstance(item, Mapping):
                pending += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple | set):
                pending += item
            elif isinstance(item, Namespace):
                pending += object.__getattribute__(item, "_Namespace__attrs").values()
        return before - self._left


_current: ContextVar[RenderBudget] = ContextVar("render_budget")
current_budget = _current.get


@contextmanager
def render_budget() -> Iterator[RenderBudget]:
    """Give the templates that this thread compiles and renders inside a new budget."""
    token = _current.set(RenderBudget())
    try:
        yield _current.get()
    finally:
        _current.reset(token)
