"""ringkv doctor: what this machine has, and what ringkv uses of it."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ringkv.cli.options import SWITCH, AsJson, unpanelled
from ringkv.cli.output import console, print_json, print_table
from ringkv.llm.show_progress import show_progress
from ringkv.plan.units import show_bytes

if TYPE_CHECKING:
    from ringkv.doctor.report import Doctor
    from ringkv.doctor.verify import Verified


def doctor(
    *,
    check: Annotated[
        bool,
        unpanelled(
            "--verify",
            SWITCH,
            "Instead, compute the checksums of all cached downloads, converted weights and compiled code, and compare "
            "them. The exit status is 1 if one differs.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what this machine has, what ringkv uses of it and why, and what is missing.

    Needs no model and does not change anything.

        ringkv doctor
        ringkv doctor --json
        ringkv doctor --verify
    """
    if check:
        _verify(as_json)
        return
    from ringkv.doctor.report import report

    with show_progress() as progress:
        progress(0, 0, "inspecting this machine")
        facts = report()
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def _verify(as_json: bool) -> None:
    """Print what was verified, and exit with status 1 if a file has changed."""
    from ringkv.doctor.verify import verify
    from ringkv.machine.folders import cache_dir

    with show_progress() as progress:
        verified = verify(cache_dir(), progress)
    if as_json:
        print_json(verified)
    else:
        _print_verified(verified)
    if any(item.fault for item in verified):
        raise typer.Exit(1)


def _print_verified(verified: "Sequence[Verified]") -> None:
    by_folder = defaultdict(list)
    for item in verified:
        by_folder[item.path.parent].append(item)
    rows = [
        (
            f"  {folder}",
            str(len(items)),
            show_bytes(sum(item.bytes for item in items)),
            str(sum(item.fault is not None for item in items)),
        )
        for folder, items in by_folder.items()
    ]
    print_table(("verified", "", "size", "changed"), rows)
    for item in verified:
        if item.fault:
            console().print(f"\n{item.path}: {item.fault}; {item.remedy}", soft_wrap=True)


def _print(facts: "Doctor") -> None:
    packages = [(package.name, package.version or "not installed") for package in facts.packages]
    versions = [("ringkv", facts.ringkv), ("python", facts.python), ("system", facts.system), *packages]
    for title, rows in (("versions", versions), ("machine", _machine(facts))):
        print_table((title, ""), [(f"  {name}", text) for name, text in rows])
        console().print()
    chosen = [(f"  {choice.what}", choice.value, choice.why) for choice in facts.choices]
    print_table(("ringkv uses", "", "because"), chosen)
    for problem in facts.problems:
        console().print(f"\nto improve {problem.what}: {problem.remedy}", soft_wrap=True)


def _machine(facts: "Doctor") -> list[tuple[str, str]]:
    cpu, memory, cache = facts.cpu, facts.memory, facts.cache
    limit = f", this container's limit is {show_bytes(memory.limit)}" if memory.limit is not None else ""
    compiler = facts.compiler
    headers = "with" if compiler and compiler.python_headers else "without"
    folders = ", ".join(f"{folder.name} {show_bytes(folder.bytes)}" for folder in cache.folders) or "empty"
    chosen = "" if cache.set_by == "default" else f" (set by {cache.set_by})"
    return [
        ("cpu", f"{cpu.name}: {cpu.cpus} CPUs, {cpu.usable} usable, torch threads {cpu.torch_threads or 'unknown'}"),
        ("instructions", " ".join(cpu.instructions) or "no vector extensions found"),
        ("memory", f"{show_bytes(memory.available)} available of {show_bytes(memory.total)}{limit}"),
        *(
            (device.name, f"{device.model}, {show_bytes(device.free)} free of {show_bytes(device.memory)}")
            for device in facts.devices
            if device.name != "cpu"
        ),
        ("compiler", f"{compiler.version} ({compiler.path}), {headers} Python.h" if compiler else "none"),
        ("cache", f"{cache.path}{chosen}: {folders}; {show_bytes(cache.disk_free)} free"),
    ]
