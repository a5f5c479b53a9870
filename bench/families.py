"""families: compiled graphs of each family's tiny random model, beside plain calls of the same functions.

    python -m bench.families                     half an hour; needs a C++ compiler
    python -m bench.families gemma4 hunyuan      some of them

It serves three prompts in float32, at once with compiled graphs, at once with plain calls, and alone with compiled
graphs. All three give the same tokens, or it names the models that differ and exits with status 1.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from ringkv.engine.build import build

LENGTHS = (90, 40, 150)  # tokens of the prompts; the last one wraps its ring


def main() -> None:
    from tests.engine.test_golden import MODELS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"one of {', '.join(MODELS)}; all if none is given")
    asked = parser.parse_args().models or list(MODELS)
    if unknown := set(asked) - set(MODELS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    differ = []
    for name in asked:
        began = time.perf_counter()
        is_equal = _is_equal(*MODELS[name])
        print(f"{name}: {'equal' if is_equal else 'different'} tokens, {time.perf_counter() - began:.0f} s", flush=True)
        differ += [] if is_equal else [name]
    sys.exit(f"different tokens: {', '.join(differ)}" if differ else 0)


def _is_equal(kind: str, changes: dict[str, object]) -> bool:
    from tests.engine import tiny
    from tests.engine.test_families import answers

    with tempfile.TemporaryDirectory() as folder:
        tiny.save(Path(folder), kind, **changes)
        compiled, plain = (build(tiny.config(Path(folder), graphs=graphs)) for graphs in ("compiled", "off"))
        prompts = _prompts()
        together = answers(compiled, *prompts)
        return together == answers(plain, *prompts) == [answers(compiled, one)[0] for one in prompts]


def _prompts() -> Sequence[list[int]]:
    torch.manual_seed(0)
    return [torch.randint(3, 190, (length,)).tolist() for length in LENGTHS]


if __name__ == "__main__":
    main()
