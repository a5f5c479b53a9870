"""arguments: what the command lines of several tools share, and what they print."""

import argparse
from collections.abc import Callable, Collection


def command_line(about: str | None, name: str | None = None, **defaults: str | float) -> argparse.ArgumentParser:
    """Return a parser whose --help shows a module's docstring as it is.

    defaults: flags that need no explanation. The type of the default is the type of the flag's value.
    """
    parser = argparse.ArgumentParser(prog=name, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag, default in defaults.items():
        parser.add_argument(f"--{flag}", type=type(default), default=default)
    return parser


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def names_of(known: Collection[str], what: str) -> Callable[[str], tuple[str, ...]]:
    """Return a function that reads names with commas between them, and refuses unknown ones with those that exist."""

    def names(text: str) -> tuple[str, ...]:
        given = tuple(text.split(","))
        if unknown := [name for name in given if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown {what} {', '.join(unknown)}; {what}s are {', '.join(known)}")
        return given

    return names


def report(text: str) -> None:
    """Print a line at once, although the output may be a file."""
    print(text, flush=True)
