"""Train a small decoder until it recalls, and export it in Hugging Face's layout.

    pip install '.[eval]'
    python -m examples.train gqa --out trained/gqa       gqa, mla, cla2 or moe; the same command resumes
    ringkv eval --model trained/gqa --tasks recall --lengths 1k,2k --budgets 2x,4x,8x

It learns the task `recall` (one of many numbers, by its name) in prompts of up to 2k tokens, and Python's standard
library. It takes about a quarter of an hour on one core.
"""

import argparse
import ctypes
import sys
from pathlib import Path

import torch

from examples.train.batches import STAGES, Batches
from examples.train.export import export
from examples.train.loop import Trainer
from examples.train.sizes import Sizes
from examples.train.variants import VARIANTS
from examples.train.vocabulary import load
from ringkv.base.errors import InvalidRequest
from ringkv.evaluation.needed import check


def main() -> None:
    args = _arguments()
    _check_packages()
    _keep_freed_memory()
    tokenizer = load(args.out)
    sizes, variant = Sizes(tokenizer.get_vocab_size()), VARIANTS[args.variant]
    torch.manual_seed(args.seed)
    decoder = variant.decoder(sizes)
    print(f"{args.variant}: {sum(one.numel() for one in decoder.parameters()):,} parameters", flush=True)
    trainer = Trainer(decoder, Batches(tokenizer, args.seed), STAGES, args.seed, args.out / "checkpoint.pt")
    is_done = trainer.run(lambda line: print(line, flush=True))
    export(decoder, variant, sizes, tokenizer, args.out)
    print(f"{'trained' if is_done else 'stopped; the same command resumes'}: {args.out}")


def _check_packages() -> None:
    """End with one sentence if the words of the task are not installed."""
    try:
        check()
    except InvalidRequest as error:
        sys.exit(f"examples.train: {error}")


def _keep_freed_memory() -> None:
    """Keep large freed blocks in the process: returning each to the system costs a third of a step."""
    if sys.platform == "linux":
        libc = ctypes.CDLL("libc.so.6")
        for parameter, value in ((-3, 1 << 30), (-1, (1 << 31) - 1)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
            libc.mallopt(parameter, value)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m examples.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("variant", choices=tuple(VARIANTS))
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint and the exported model")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
