"""Fake CUDA tensors: shapes, strides and dtypes on "cuda:0" without memory and without a device."""

import subprocess
from functools import cache as once
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ringkv.machine.compiler import find_compiler, missing_for_graphs


def fake_cuda() -> FakeTensorMode:
    """The mode in which tensors on "cuda" are fake; the test is skipped where a compiler is missing for that."""
    if torch.version.cuda is None:
        _load_guard()
    return FakeTensorMode()


@once
def _load_guard() -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip(str(missing_for_graphs()))
    torch_folder = Path(torch.__file__).parent
    with TemporaryDirectory() as folder:
        library = Path(folder) / "guard.so"
        where = [f"-I{torch_folder / 'include'}", f"-L{torch_folder / 'lib'}", "-lc10"]
        source = Path(__file__).with_name("cuda_guard.cpp")
        command = [compiler.path, "-std=c++20", "-shared", "-fPIC", str(source), "-o", str(library), *where]
        subprocess.run(command, check=True)
        torch.ops.load_library(str(library))
