"""ringkv doctor: what this machine has, and what ringkv uses of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ringkv.cli.options import SWITCH, AsJson
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
        typer.Option(
            "--verify",
            metavar=SWITCH,
            help="Instead, compute the checksums of all cached downloads, converted weights and compiled code, and "
            "compare them. The exit status is 1 if one differs.",
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
        found = report()
    if as_json:
        print_json(found)
    else:
        _print(found)


def _verify(as_json: bool) -> None:
    """Print what was verified, and exit with status 1 if a file has changed."""
    from ringkv.doctor.verify import verify
    from ringkv.machine.folders import cache_dir

    with show_progress() as progress:
        found = verify(cache_dir(), progress)
    if as_json:
        print_json(found)
    else:
        _print_verified(found)
    if any(one.fault for one in found):
        raise typer.Exit(1)


def _print_verified(found: "Sequence[Verified]") -> None:
    kinds = dict.fromkeys(one.path.parent for one in found)
    rows = [(kind, [one for one in found if one.path.parent == kind]) for kind in kinds]
    print_table(
        ("verified", "", "size", "changed"),
        [
            (
                f"  {kind}",
                str(len(ones)),
                show_bytes(sum(one.bytes for one in ones)),
                str(sum(one.fault is not None for one in ones)),
            )
            for kind, ones in rows
        ],
    )
    for one in found:
        if one.fault:
            console().print(f"\n{one.path}: {one.fault}; {one.remedy}", soft_wrap=True)


def _print(found: "Doctor") -> None:
    print_table(("versions", ""), [(f"  {name}", version) for name, version in _versions(found)])
    console().print()
    print_table(("machine", ""), [(f"  {name}", text) for name, text in _machine(found)])
    console().print()
    print_table(
        ("ringkv uses", "", "because"), [(f"  {choice.what}", choice.value, choice.why) for choice in found.choices]
    )
    for problem in found.problems:
        console().print(f"\nto improve {problem.what}: {problem.remedy}", soft_wrap=True)


def _versions(found: "Doctor") -> list[tuple[str, str]]:
    packages = [(package.name, package.version or "not installed") for package in found.packages]
    return [("ringkv", found.ringkv), ("python", found.python), ("system", found.system), *packages]


def _machine(found: "Doctor") -> list[tuple[str, str]]:
    cpu, memory, cache = found.cpu, found.memory, found.cache
    limit = f", this container's limit is {show_bytes(memory.limit)}" if memory.limit is not None else ""
    compiler = found.compiler
    headers = "with" if compiler and compiler.python_headers else "without"
    folders = ", ".join(f"{folder.name} {show_bytes(folder.bytes)}" for folder in cache.folders) or "empty"
    chosen = "" if cache.set_by == "default" else f" (set by {cache.set_by})"
    return [
        ("cpu", f"{cpu.name}: {cpu.cpus} CPUs, {cpu.usable} usable, torch threads {cpu.torch_threads or 'unknown'}"),
        ("instructions", " ".join(cpu.instructions) or "no vector extensions found"),
        ("memory", f"{show_bytes(memory.available)} available of {show_bytes(memory.total)}{limit}"),
        *(
            (device.name, f"{device.model}, {show_bytes(device.free)} free of {show_bytes(device.memory)}")
            for device in found.devices
            if device.name != "cpu"
        ),
        ("compiler", f"{compiler.version} ({compiler.path}), {headers} Python.h" if compiler else "none"),
        ("cache", f"{cache.path}{chosen}: {folders}; {show_bytes(cache.disk_free)} free"),
    ]
