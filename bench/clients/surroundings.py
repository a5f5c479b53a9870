"""surroundings: the clients' environment, a server, and a model under another chat template."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.peers.install import python_of

TEMPLATES = Path(__file__).parent / "templates"
TEMPLATE = "chat_template.jinja"  # the model's own template, or its replacement
REQUIREMENTS = Path(__file__).parent / "requirements"
NAME = "clients"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Server(NamedTuple):
    url: str
    model: str
    tokenizer: Path  # a directory with tokenizer.json, for clients that count tokens


class ClientOutput(NamedTuple):
    code: int
    output: str

    @property
    def last(self) -> str:
        """Return the last line of output."""
        return (self.output.strip().splitlines() or ["nothing"])[-1][:200]


def client(
    command: Sequence[str],
    seconds: float,
    name: str = NAME,
    requirements: Path = REQUIREMENTS,
    environment: Mapping[str, str] = OFFLINE,
) -> ClientOutput:
    """Run a program of the environment `name`. The exit status is 124 after this many seconds."""
    program = python_of(name, requirements=requirements).parent / command[0]
    try:
        done = subprocess.run(
            [program, *command[1:]],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as over:
        return ClientOutput(124, f"{over.output or ''}\nit took more than {seconds:.0f} s")
    return ClientOutput(done.returncode, done.stdout + done.stderr)


@contextmanager
def with_template(folder: Path, template: str) -> Iterator[Path]:
    """Make a temporary folder that links to the model's files but has one of our templates."""
    with TemporaryDirectory() as temporary:
        model = Path(temporary) / template
        model.mkdir()
        for file in folder.iterdir():
            if file.name != TEMPLATE:
                (model / file.name).symlink_to(file.resolve())
        shutil.copy(TEMPLATES / f"{template}.jinja", model / TEMPLATE)
        yield model
