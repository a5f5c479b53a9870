"""The GPU's graphs, compiled for an absent GPU."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from ringkv.machine.compiler import missing_for_graphs

ROOT = Path(__file__).parents[2]

if find_spec("triton") is None:
    pytest.skip("triton is not installed (Linux only)", allow_module_level=True)
if missing := missing_for_graphs():
    pytest.skip(f"graphs cannot be compiled: {missing}", allow_module_level=True)
if not torch.__version__.startswith("2.13."):
    pytest.skip("what it replaces is in torch 2.13", allow_module_level=True)


@pytest.mark.slow
def test_inductor_compiles_every_graph_and_fuses_operators_between_attention_and_products() -> None:
    command = [sys.executable, "-m", "tests.graphs.inductor_without_device", "llama"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stderr
    kernels = {name: int(count) for name, count in map(str.split, run.stdout.splitlines())}
    tiers = ("greedy", "temperature", "grammar", "adjusted", "truncated")
    layers = ("prefill-global-128", "prefill-global-256", "decode-global-3")
    assert {*kernels} == {*layers, "head-3", *(f"sample-{tier}" for tier in tiers)}
    assert {kernels[name] for name in layers} == {5}  # two norms, two of rotary embedding, one of silu
    assert kernels["sample-greedy"] == kernels["sample-temperature"] == 1
