"""install: a peer's own virtual environment, made once from requirements/NAME.txt.

peers/NAME/          under ringkv's cache folder; `.installed` inside says from which requirements
"""

import os
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path

from ringkv.machine.paths import cache_dir

STAMP = ".installed"
REQUIREMENTS = Path(__file__).parent / "requirements"
UNWANTED: Mapping[str, tuple[str, ...]] = {
    # Their compiled halves belong to another build of torch, and importing them ends the process.
    "vllm": ("torchvision", "torchaudio", "torchcodec"),
    "openvino-convert": ("torchvision",),
}
STEPS = ("Collecting", "Downloading", "Building", "Installing", "Successfully", "ERROR")  # pip's lines worth showing

Say = Callable[[str], None]


class NotInstalled(Exception):
    """A peer that could not be installed, and why in a few words."""


def python_of(name: str, say: Say = print, requirements: Path = REQUIREMENTS) -> Path:
    """The interpreter of an environment, made if need be; our own where a peer has no requirements of its own.

    Raises NotInstalled.
    """
    if not (wanted := _wanted(name, requirements)):
        return Path(sys.executable)
    folder = peers_dir() / name
    stamp = folder / STAMP
    if not stamp.is_file() or stamp.read_text() != wanted:
        _install(name, folder, say, requirements)
        stamp.write_text(wanted)
    return _python(folder)


def peers_dir() -> Path:
    """Where environments, converted weights, logs and journals lie."""
    return cache_dir() / "peers"


def _wanted(name: str, requirements: Path) -> str:
    """What the environment is made of; nothing for an engine that runs in ours."""
    path = requirements / f"{name}.txt"
    if not path.is_file():
        return ""
    return path.read_text() + "".join(f"without {package}\n" for package in UNWANTED.get(name, ()))


def _install(name: str, folder: Path, say: Say, requirements: Path) -> None:
    say(f"{name}: installing into {folder} (once)")
    if not (folder / STAMP).is_file():  # not there, or never finished
        venv.create(folder, with_pip=True, clear=True)
    _pip(name, folder, ["install", "-r", str(requirements / f"{name}.txt")], say)
    if unwanted := UNWANTED.get(name):
        _pip(name, folder, ["uninstall", "-y", *unwanted], say)


def _pip(name: str, folder: Path, words: list[str], say: Say) -> None:
    """Run pip, showing its steps; everything it says is in install.log."""
    last = ""
    command: list[str | Path] = [_python(folder), "-m", "pip", "--disable-pip-version-check", *words]
    with (
        open(folder / "install.log", "a") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            log.write(line)
            last = line.strip() or last
            if line.strip().startswith(STEPS):
                say(f"{name}: {line.strip()[:100]}")
    if pip.returncode:
        say(f"{name}: pip failed; {folder / 'install.log'} has what it said")
        raise NotInstalled(f"not installed: pip failed ({last[:120]})")


def _python(folder: Path) -> Path:
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"
