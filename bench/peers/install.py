"""install: a virtual environment per peer, created once from requirements/NAME.txt.

It is peers/NAME/ under ringkv's cache folder; its file `.installed` holds the requirements it was created from.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path

from ringkv.machine.folders import cache_dir

STAMP = ".installed"
REQUIREMENTS = Path(__file__).parent / "requirements"
UNWANTED: Mapping[str, tuple[str, ...]] = {
    # Their extensions are built for another torch build, and importing them crashes the process.
    "vllm": ("torchvision", "torchaudio", "torchcodec"),
    "openvino-convert": ("torchvision",),
}
BUILDS: Mapping[str, Mapping[str, str]] = {
    # llama.cpp's server is compiled for this processor, without what it does not need.
    "llama-server": {
        "CMAKE_ARGS": "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF"
        " -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF",
        "LLAMA_CPP_BUILD_JOBS": f"{os.cpu_count() or 1}",
    }
}

Report = Callable[[str], None]


class NotInstalled(Exception):
    """A peer could not be installed; the message is the reason."""


def python_of(name: str, report: Report = print, requirements: Path = REQUIREMENTS) -> Path:
    """Return the interpreter of an environment, which is created if needed; our own if a peer has no requirements.

    Raises NotInstalled.
    """
    if not (contents := _contents(name, requirements)):
        return Path(sys.executable)
    folder = peers_dir() / name
    stamp = folder / STAMP
    if not stamp.is_file() or stamp.read_text() != contents:
        _install(name, folder, report, requirements)
        stamp.write_text(contents)
    return _python(folder)


def peers_dir() -> Path:
    """Return the folder of environments, converted weights, logs and journals."""
    return cache_dir() / "peers"


def _contents(name: str, requirements: Path) -> str:
    """Return the environment's requirements and removed packages; empty for an engine that runs in ours."""
    path = requirements / f"{name}.txt"
    if not path.is_file():
        return ""
    return path.read_text() + "".join(f"without {package}\n" for package in UNWANTED.get(name, ()))


def _install(name: str, folder: Path, report: Report, requirements: Path) -> None:
    report(f"{name}: installing into {folder} (once, takes minutes; see install.log)")
    if not (folder / STAMP).is_file():  # missing or incomplete
        venv.create(folder, with_pip=True, clear=True)
    _pip(name, folder, ["install", "-r", str(requirements / f"{name}.txt")], report)
    if unwanted := UNWANTED.get(name):
        _pip(name, folder, ["uninstall", "-y", *unwanted], report)


def _pip(name: str, folder: Path, arguments: list[str], report: Report) -> None:
    """Run pip; install.log has its output."""
    command: list[str | Path] = [_python(folder), "-m", "pip", "--disable-pip-version-check", *arguments]
    log = folder / "install.log"
    with log.open("a") as output:
        environment = {**os.environ, **BUILDS.get(name, {})}
        pip = subprocess.run(command, stdout=output, stderr=output, cwd=folder, env=environment, check=False)
    if pip.returncode:
        report(f"{name}: pip failed; see {log}")
        last = log.read_text().strip().splitlines()[-1:]
        raise NotInstalled(f"not installed: pip failed ({''.join(last)[:120]})")


def _python(folder: Path) -> Path:
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"
