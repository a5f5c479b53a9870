"""What clients run in: their own environment, a server, and a model that speaks as another does."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.peers.install import python_of

TEMPLATES = Path(__file__).parent / "templates"
TEMPLATE = "chat_template.jinja"  # a model's own, or what stands in its place
REQUIREMENTS = Path(__file__).parent / "requirements"
NAME = "clients"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Server(NamedTuple):
    url: str
    model: str
    tokenizer: Path  # a directory with tokenizer.json, for clients that count tokens themselves


class Ran(NamedTuple):
    code: int
    output: str

    @property
    def last(self) -> str:
        """The last line it said."""
        return (self.output.strip().splitlines() or ["nothing"])[-1][:200]


def client(
    words: Sequence[str],
    seconds: float,
    name: str = NAME,
    requirements: Path = REQUIREMENTS,
    environment: Mapping[str, str] = OFFLINE,
) -> Ran:
    """Run a program of the environment `name`: its exit status, 124 after so many seconds, and all it said."""
    command = [python_of(name, requirements=requirements).parent / words[0], *words[1:]]
    try:
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as over:
        return Ran(124, f"{over.output or ''}\nit took more than {seconds:.0f} s")
    return Ran(done.returncode, done.stdout + done.stderr)


@contextmanager
def serving(model: str, folder: Path, *flags: str) -> Iterator[Server]:
    """`ringkv serve MODEL` as a user starts it, on a free port."""
    command = [sys.executable, "-m", "ringkv", "serve", "--model", model, "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = next((found[0] for line in process.stdout if (found := re.search(r"http://[\d.]+:\d+", line))), None)
            if url is None:
                raise RuntimeError(f"the server ended with status {process.wait()} before it was ready")
            yield Server(url, model, folder)
        finally:
            process.terminate()


@contextmanager
def with_template(folder: Path, template: str) -> Iterator[Path]:
    """A folder with the same model under one of our templates; gone afterwards, the model stays where it is."""
    with TemporaryDirectory() as made:
        spoken = Path(made) / template
        spoken.mkdir()
        for file in folder.iterdir():
            if file.name != TEMPLATE:
                (spoken / file.name).symlink_to(file.resolve())
        shutil.copy(TEMPLATES / f"{template}.jinja", spoken / TEMPLATE)
        yield spoken
