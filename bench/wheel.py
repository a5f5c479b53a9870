"""wheel: does the built package work for someone who installs it? Nothing is measured; a row says what each Python did.

    python -m bench.wheel                           Python 3.11, 3.12 and 3.13, as far as this machine has them
    python -m bench.wheel --python /usr/bin/python3.12

The wheel is built from the source distribution and installed with pip into a new environment, with the pinned versions.
There `ringkv doctor`, `generate` and `serve` run outside the checkout with an empty cache, so the model is downloaded
and everything is compiled: minutes for each Python, and gigabytes if pip finds only torch's CUDA build for it. All
folders are temporary.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.arguments import command_line
from bench.results import table
from bench.serving import ask, serving
from ringkv.machine.interrupts import exit_on_sigterm

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13")
QUESTION, ANSWER = "What is the capital of France?", "Paris"
OURS = ("RINGKV_", "PYTHON", "TORCHINDUCTOR_")  # variables that the new environment does not inherit
STARTS_S = 900.0  # seconds in which a command may download, compile and answer


class WheelFailed(Exception):
    """A step of the check failed; the message has the end of its output."""


class Row(NamedTuple):
    """What one interpreter did: a word or a time for each step."""

    python: str
    torch: str
    install: str
    doctor: str
    generate: str
    serve: str


class Installed(NamedTuple):
    """A new environment in a folder."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def ringkv(self) -> Path:
        return self.folder / "venv" / "bin" / "ringkv"

    @property
    def home(self) -> Path:
        """The empty working directory."""
        return self.folder / "home"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        temporary = self.folder / "tmp"
        return {**kept, "RINGKV_CACHE": str(self.folder / "cache"), "TMPDIR": str(temporary)}

    def run(self, *command: str | Path) -> str:
        """Return what a command prints on stdout."""
        return run(*command, cwd=self.home, env=self.environment)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--python", type=Path, nargs="+", default=[], metavar="PATH", help="interpreters to use")
    args = parser.parse_args()
    exit_on_sigterm()  # so that the temporary folders go
    pythons = [path.absolute() for path in args.python] or list(interpreters(VERSIONS))
    if not pythons:
        sys.exit(f"no Python {', '.join(VERSIONS)} was found on PATH or in ~/.pyenv/versions; give --python PATH")
    with TemporaryDirectory(prefix="ringkv-wheel-") as folder:
        wheel = build(Path(folder))
        rows = []
        for python in pythons:
            print(f"{python}: installing {wheel.name}, then running it", flush=True)
            try:
                rows.append(check(python, wheel))
            except WheelFailed as error:
                rows.append(Row(str(python), *["failed"] * (len(Row._fields) - 1)))
                print(f"{python}: {error}", file=sys.stderr, flush=True)
    print(table(Row._fields, rows))
    sys.exit(any(row.torch == "failed" for row in rows))


def interpreters(versions: Sequence[str], home: Path | None = None) -> Iterator[Path]:
    """Yield the first interpreter of each version that runs, from PATH and then from pyenv."""
    for version in versions:
        on_path = (shutil.which(f"python{version}", path=folder) for folder in os.get_exec_path())
        in_pyenv = sorted((home or Path.home()).glob(f".pyenv/versions/{version}.*/bin/python"))
        candidates = [*map(Path, filter(None, on_path)), *in_pyenv]
        yield from [path for path in candidates if _version(path) == version][:1]


def _version(python: Path) -> str | None:
    """Return "3.12"; None if the program does not run, such as a shim of pyenv for a version that is not selected."""
    code = "import sys; print('.'.join(map(str, sys.version_info[:2])))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def build(folder: Path) -> Path:
    """Build the source distribution, then the wheel from it, as package indexes' users get them."""
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", folder, cwd=ROOT)
    (sdist,) = folder.glob("ringkv-*.tar.gz")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", folder, sdist)
    (wheel,) = folder.glob("ringkv-*.whl")
    return wheel


def check(python: Path, wheel: Path) -> Row:
    """Install the wheel for an interpreter and run its commands. Raises WheelFailed."""
    with TemporaryDirectory(prefix="ringkv-wheel-") as folder:
        made = Installed(Path(folder))
        made.home.mkdir()
        (made.folder / "tmp").mkdir()
        install_s = _seconds(lambda: _install(made, python, wheel))
        doctor = json.loads(made.run(made.ringkv, "doctor", "--json"))
        return Row(
            python=doctor["python"],
            torch=_named(doctor["packages"], "name", "torch")["version"],
            install=f"{install_s:.0f} s",
            doctor=", ".join(
                f"{name} {_named(doctor['choices'], 'what', name)['value']}" for name in ("kernels", "graphs")
            ),
            generate=f"{_seconds(lambda: _generate(made)):.0f} s",
            serve=f"{_seconds(lambda: _serve(made)):.0f} s",
        )


def _install(made: Installed, python: Path, wheel: Path) -> None:
    run(python, "-m", "venv", made.folder / "venv")
    pip = (made.python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    made.run(*pip, "--constraint", ROOT / "constraints.txt", wheel)


def _named(entries: Sequence[dict[str, str]], key: str, name: str) -> dict[str, str]:
    return next(entry for entry in entries if entry[key] == name)


def _generate(made: Installed) -> None:
    _expect_answer("generate", made.run(made.ringkv, "generate", "--max-tokens", "16", QUESTION))


def _serve(made: Installed) -> None:
    """Start a server, send it a chat request over HTTP, and stop it."""
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 16, "temperature": 0}
    try:
        with serving("--slots", 1, ringkv=made.ringkv, cwd=made.home, env=made.environment) as server:
            _, answer = ask(server.port, "POST", "/v1/chat/completions", json.dumps(body).encode())
    except RuntimeError as error:
        raise WheelFailed(f"serve: {error}") from error
    _expect_answer("serve", answer.decode())


def _expect_answer(step: str, output: str) -> None:
    if ANSWER not in output:
        raise WheelFailed(f"{step} was wrong:\n{_last_lines(output)}")


def run(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Return what a command prints on stdout. Raises WheelFailed with its last lines if it fails."""
    shown = " ".join(map(str, command))
    try:
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=STARTS_S)
    except subprocess.TimeoutExpired as error:
        raise WheelFailed(f"{shown} took over {STARTS_S:g} s") from error
    if done.returncode:
        raise WheelFailed(f"{shown} exited with {done.returncode}:\n{_last_lines(done.stdout + done.stderr)}")
    return done.stdout


def _last_lines(text: str, count: int = 15) -> str:
    return "\n".join(text.splitlines()[-count:])


def _seconds(step: Callable[[], None]) -> float:
    began = time.monotonic()
    step()
    return time.monotonic() - began


if __name__ == "__main__":
    main()
