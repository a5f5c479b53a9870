"""wheel: the first minutes of someone who installs the wheel, with and without a C++ compiler.

    python -m bench.wheel                           with this Python
    python -m bench.wheel --python python3.12 python3.13 --levels avx2
    python -m bench.wheel --wheel dist/ringkv-0.1.0-py3-none-manylinux_2_32_x86_64.whl

scripts/wheel.py compiles the kernels of all levels of processors, or of those that are named, for this environment's
torch. pip installs the wheel into a new environment, with the pinned versions, and it runs outside the checkout. For
each start the cache has the weights and nothing else. Without a compiler, PATH has the new environment's programs only.
`ringkv generate`, which compiles graphs first if it can, gives the time to its first token. `ringkv serve`, which
compiles them meanwhile, gives the times to an answer and to the last graph. At the end the decode steps of plain
functions and of compiled graphs alternate, on this checkout. All folders are temporary.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.arguments import command_line
from bench.beside import BUDGET, PROMPT, CommitProcess
from bench.results import table
from bench.serving import ask, serving
from bench.startup import run as time_command
from ringkv.machine.interrupts import exit_on_sigterm

ROOT = Path(__file__).resolve().parent.parent
QUESTION, ANSWER = "What is the capital of France?", "Paris"
OURS = ("RINGKV_", "PYTHON", "TORCHINDUCTOR_")  # variables that the new environment does not inherit
WEIGHTS = ("models", "converted")  # folders of the cache
COMPILED = "graphs are compiled, after"  # what the server logs
STARTS_S = 900.0  # seconds in which a command may download, compile and answer
BUILDS_S = 7200.0  # seconds in which a wheel is built
TURNS = 6


class WheelFailed(Exception):
    """A step of the check failed; the message has the end of its output."""


class Row(NamedTuple):
    """What one start of an interpreter did."""

    python: str
    compiler: str
    kernels: str
    first_token: str
    processor_time: str  # of the command that printed it
    served: str
    full_speed: str
    cache: str


class Installed(NamedTuple):
    """A new environment in a folder, with or without the compiler of this machine."""

    folder: Path
    has_compiler: bool

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
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        path = [str(self.ringkv.parent), *([os.environ["PATH"]] if self.has_compiler else [])]
        own = {"RINGKV_CACHE": self.cache, "TMPDIR": self.folder / "tmp", "PATH": os.pathsep.join(path)}
        return kept | {name: str(value) for name, value in own.items()}

    def run(self, *command: str | Path) -> str:
        """Return what a command prints on stdout."""
        return run(*command, cwd=self.home, env=self.environment)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--python", nargs="+", default=[sys._base_executable], metavar="PROGRAM", help="interpreters")
    parser.add_argument("--levels", nargs="+", default=[], metavar="LEVEL", help="levels of processors; default: all")
    parser.add_argument("--wheel", type=Path, metavar="PATH", help="a wheel that is already built")
    parser.add_argument("--models", type=str.split, default=["smollm2"], help="whose decode steps are compared")
    args = parser.parse_args()
    exit_on_sigterm()  # so that the temporary folders go
    with TemporaryDirectory(prefix="ringkv-wheel-") as folder:
        wheel = args.wheel.absolute() if args.wheel else build(Path(folder), args.levels)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        rows, failed = [], False
        for python in args.python:
            print(f"{python}: installing {wheel.name}, then running it", flush=True)
            try:
                for row in check(python, wheel):
                    rows.append(row)
                    print(*row, sep="; ", flush=True)
            except WheelFailed as error:
                failed = True
                print(f"{python}: {error}", file=sys.stderr, flush=True)
    print(table(Row._fields, rows))
    for model in args.models:
        plain_s, compiled_s = decode_steps(model)
        shown = f"{1000 * plain_s:.1f} ms with plain functions, {1000 * compiled_s:.1f} ms with compiled graphs"
        print(f"{model}, a decode step: {shown}, a ratio of {plain_s / compiled_s:.2f}")
    sys.exit(failed)


def build(folder: Path, levels: Sequence[str]) -> Path:
    """Build the wheel with the kernels of some levels, or of all."""
    run(sys.executable, ROOT / "scripts" / "wheel.py", *levels, "--directory", folder, cwd=ROOT, seconds=BUILDS_S)
    (wheel,) = folder.glob("ringkv-*.whl")
    return wheel


def check(python: str, wheel: Path) -> Iterator[Row]:
    """Install the wheel for an interpreter, and start it without and with a compiler. Raises WheelFailed."""
    with TemporaryDirectory(prefix="ringkv-wheel-") as folder:
        for has_compiler in (False, True):
            made = Installed(Path(folder), has_compiler)
            if not has_compiler:
                _install(made, python, wheel)
            yield _start(made)


def _install(made: Installed, python: str, wheel: Path) -> None:
    made.home.mkdir()
    (made.folder / "tmp").mkdir()
    run(python, "-m", "venv", made.folder / "venv")
    pip = (made.python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    made.run(*pip, "--constraint", ROOT / "constraints.txt", wheel)
    made.run(made.ringkv, "pull", "smollm2")


def _start(made: Installed) -> Row:
    doctor = json.loads(made.run(made.ringkv, "doctor", "--json"))
    choices = {choice["what"]: choice for choice in doctor["choices"]}
    _empty(made.cache)
    command = [str(made.ringkv), "generate", "--max-tokens", "16", QUESTION]
    generated = time_command(command, cwd=made.home, env=made.environment)
    _empty(made.cache)
    served_s, full_s = _serve(made, waits=choices["graphs"]["value"] != "off")
    weights, cache = sum(_bytes(made.cache / name) for name in WEIGHTS), _bytes(made.cache)
    return Row(
        python=f"{doctor['python']}, torch {_named(doctor['packages'], 'name', 'torch')['version']}",
        compiler=doctor["compiler"]["version"] if doctor["compiler"] else "none",
        kernels=f"{choices['kernels']['value']}: {choices['kernels']['why']}",
        first_token=f"{generated.first_s:.1f} s",
        processor_time=f"{generated.cpu_s:.1f} s",
        served=f"{served_s:.1f} s",
        full_speed="no compiler: plain functions" if full_s is None else f"{full_s:.0f} s",
        cache=f"{cache / 1e6:.0f} MB, {cache / weights:.2f} times the weights",
    )


def _empty(cache: Path) -> None:
    """Delete all but the weights."""
    for path in cache.iterdir():
        if path.name not in WEIGHTS:
            shutil.rmtree(path)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _named(entries: Sequence[dict[str, str]], key: str, name: str) -> dict[str, str]:
    return next(entry for entry in entries if entry[key] == name)


def _serve(made: Installed, waits: bool) -> tuple[float, float | None]:
    """Start a server; return the seconds to its answer to a chat request, and to its last graph if it `waits`."""
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 16, "temperature": 0}
    log, began, full_s = made.home / "serve.log", time.monotonic(), None
    try:
        with (
            log.open("w") as errors,
            serving("--slots", 1, ringkv=made.ringkv, cwd=made.home, env=made.environment, stderr=errors) as server,
        ):
            _, answer = ask(server.port, "POST", "/v1/chat/completions", json.dumps(body).encode())
            served_s = time.monotonic() - began
            while waits and full_s is None:
                time.sleep(0.1)
                now_s = time.monotonic() - began
                if COMPILED in log.read_text():
                    full_s = now_s
                elif now_s > STARTS_S:
                    raise WheelFailed(f"serve: graphs are not compiled:\n{_last_lines(log.read_text())}")
    except RuntimeError as error:
        raise WheelFailed(f"serve: {error}") from error
    if ANSWER not in answer.decode():
        raise WheelFailed(f"serve was wrong:\n{_last_lines(answer.decode())}")
    return served_s, full_s


def decode_steps(model: str) -> tuple[float, float]:
    """Return the seconds of a decode step with plain functions and with compiled graphs: medians that alternate."""
    base, seconds = {"prompt_tokens": PROMPT, "kv_budget": BUDGET, "slots": 1}, defaultdict(list)
    with ExitStack() as stack:
        workers = {graphs: CommitProcess(ROOT, model, base | {"graphs": graphs}) for graphs in ("off", "compiled")}
        for worker in workers.values():
            stack.callback(worker.close)
            worker.measure()  # warms up
        for _ in range(TURNS):
            for graphs, worker in workers.items():
                seconds[graphs] += worker.measure()[1]
    return median(seconds["off"]), median(seconds["compiled"])


def run(
    *command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, seconds: float = STARTS_S
) -> str:
    """Return what a command prints on stdout. Raises WheelFailed with its last lines if it fails."""
    shown = " ".join(map(str, command))
    try:
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise WheelFailed(f"{shown} took over {seconds:g} s") from error
    if done.returncode:
        raise WheelFailed(f"{shown} exited with {done.returncode}:\n{_last_lines(done.stdout + done.stderr)}")
    return done.stdout


def _last_lines(text: str, count: int = 15) -> str:
    return "\n".join(text.splitlines()[-count:])


if __name__ == "__main__":
    main()
