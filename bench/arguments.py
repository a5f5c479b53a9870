"""arguments: what the command lines of several tools share, and what they print."""

import argparse
from collections.abc import Callable, Collection


def command_line(about: str | None, name: str | None = None) -> argparse.ArgumentParser:
    """Return a parser whose --help shows a module's docstring as it is."""
    return argparse.ArgumentParser(prog=name, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


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
