"""What an engine is built from, and what it does without."""

import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest
import torch
from torch.cuda._utils import _get_device_index

from ringkv.base.errors import BadWeights
from ringkv.engine import build as module
from ringkv.engine.build import build
from ringkv.weights.checkpoint import Checkpoint
from tests.engine import tiny

PROMPT = list(range(3, 150))
WITHOUT_COMPILER = """
import json, logging, sys
from pathlib import Path
logging.basicConfig(level="WARNING", format="%(message)s")
from ringkv.engine.build import build
from tests.engine import tiny
engine = build(tiny.config(Path(sys.argv[1]), graphs="compiled"))
tiny.enter(engine, tiny.request(json.loads(sys.argv[2])))
print(json.dumps(tiny.decode(engine, 40)[0]))
"""


@pytest.mark.slow  # loads torch in a process
def test_without_a_compiler_everything_runs_eagerly_after_one_clear_line(llama_dir: Path) -> None:
    engine = build(tiny.config(llama_dir))
    tiny.enter(engine, tiny.request(PROMPT))
    want, _ = tiny.decode(engine, 40)

    environment = {name: value for name, value in os.environ.items() if name != "CXX"}
    environment |= {"PATH": "/nowhere", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WITHOUT_COMPILER, str(llama_dir), json.dumps(PROMPT)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(run.stdout) == want
    told = [line for line in run.stderr.splitlines() if "compil" in line]
    assert len(told) == 1
    assert "g++" in told[0]


@pytest.mark.slow  # loads torch in a process
def test_on_another_platform_torchs_operators_return_the_same_tokens_after_one_clear_line(llama_dir: Path) -> None:
    engine = build(tiny.config(llama_dir))
    tiny.enter(engine, tiny.request(PROMPT))
    want, _ = tiny.decode(engine, 40)

    code = "import platform; platform.machine = lambda: 'aarch64'" + WITHOUT_COMPILER.replace("compiled", "off")
    command = [sys.executable, "-c", code, str(llama_dir), json.dumps(PROMPT)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(run.stdout) == want
    (told,) = [line for line in run.stderr.splitlines() if "running" in line]
    assert "Linux on aarch64" in told


def test_cuda_without_a_number_is_the_first_device(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    # As torch's own: it raises ValueError for a device without an index.
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: current.append(_get_device_index(device)))
    assert [str(module._device(name)) for name in ("cuda", "cuda:0", "cuda:1")] == ["cuda:0", "cuda:0", "cuda:1"]
    assert current == [0, 0, 1]


def test_progress_names_each_step(llama_dir: Path) -> None:
    told: list[tuple[int, int, str]] = []
    build(tiny.config(llama_dir), lambda *step: told.append(step))
    assert (4, 4, "loading weights") in told


def test_a_checkpoint_that_lacks_a_tensor_is_refused_by_its_name(llama_dir: Path, tmp_path: Path) -> None:
    wide = json.loads((llama_dir / "config.json").read_text()) | {"num_hidden_layers": 4}
    (tmp_path / "config.json").write_text(json.dumps(wide))
    (tmp_path / "model.safetensors").write_bytes((llama_dir / "model.safetensors").read_bytes())
    with pytest.raises(BadWeights, match=r"model\.layers\.3\."):
        build(tiny.config(tmp_path))


def test_weights_are_held_once(llama_dir: Path) -> None:
    engine = build(tiny.config(llama_dir))
    shapes = Checkpoint(llama_dir).shapes()
    count = sum(prod(shape) for shape in shapes.values())
    assert engine.weight_bytes == 4 * count
