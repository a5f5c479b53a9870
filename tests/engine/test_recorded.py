"""Results of commit 099e118, recorded before the cache was given its body: today's must be the same, bit by bit.

Which bits a product has depends on the processor: its own are recorded for each kind, in `recorded/`. On a processor
that has no record, float32 results must be close to those of any other, and the kept sets and greedy tokens equal.

The prompt has whole chunks. In 099e118 a shorter last piece was padded to a chunk, so its rows rounded otherwise.

    python -m tests.engine.test_recorded    record this processor's, from the commit that is checked out
"""

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

from ringkv.base.kv import KVChoice
from ringkv.base.selectors import TOVA, KeyDiff, KVzip
from ringkv.engine.build import build
from ringkv.machine.processor import identity
from tests.engine import tiny

RECORDED = Path(__file__).parent / "recorded"
KINDS = ("Llama", "Qwen2", "Qwen3")
CHOICES = {
    "full": tiny.choice("full", budget=256),
    "streaming": tiny.choice("streaming"),
    "snapkv": tiny.choice("snapkv"),
    "snapstream": tiny.choice("snapstream"),
    "fixed": tiny.choice("snapstream", elastic=False, protect=((20, 30),)),
    "tova": tiny.choice("snapstream", TOVA()),
    "keydiff": tiny.choice("snapstream", KeyDiff()),
    "kvzip": tiny.choice("snapstream", KVzip()),
}
LOGITS = ("full", "snapstream")  # of these every number is kept, of the others the kept sets and the tokens
PROMPT, STEPS = 160, 24
Results = Mapping[str, np.ndarray]


def tokens(count: int) -> list[int]:
    return torch.randint(3, 199, (count,), generator=torch.Generator().manual_seed(11)).tolist()


@cache
def results(kind: str) -> Results:
    """Kept sets [L, H, live], greedy tokens [STEPS] and logits float32 [STEPS, V] of each choice."""
    found: dict[str, np.ndarray] = {}
    with TemporaryDirectory() as folder:
        tiny.save(Path(folder), kind)
        engine = build(tiny.config(Path(folder), capacity=256))
        for name, choice in CHOICES.items():
            asked = tiny.request(tokens(PROMPT), kv=choice)
            found[f"{name} kept"] = tiny.kept(engine, asked).astype(np.int16)
            tiny.enter(engine, asked, slot=1)
            said, logits = tiny.decode(engine, STEPS, slot=1)
            found[f"{name} tokens"] = np.array(said, np.int16)
            if name in LOGITS:
                found[f"{name} logits"] = logits.numpy()
    return found


def processor() -> str:
    """What float32 bits depend on here: the instructions that torch chose, and the processor's own name."""
    return f"{torch.backends.cpu.get_cpu_capability().lower()}-{_digest(identity())}"


def _digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:8]


def recorded(kind: str, processor: str) -> Results:
    with np.load(RECORDED / f"{kind.lower()}-{processor}.npz") as file:
        return dict(file)


def processors() -> list[str]:
    return sorted(path.stem.removeprefix("llama-") for path in RECORDED.glob("llama-*.npz"))


@pytest.mark.parametrize("kind", KINDS)
def test_kept_sets_and_greedy_tokens_are_those_of_099e118(kind: str) -> None:
    for before in processors():
        for name, was in recorded(kind, before).items():
            if not name.endswith("logits"):
                np.testing.assert_array_equal(results(kind)[name], was, err_msg=f"{kind} {name} on {before}")


@pytest.mark.parametrize("kind", KINDS)
def test_float32_logits_are_those_of_099e118_bit_by_bit(kind: str) -> None:
    here = processor() if processor() in processors() else None
    for name, was in recorded(kind, here or processors()[0]).items():
        if name.endswith("logits"):
            close = {"rtol": 0, "atol": 0} if here else {"rtol": 1e-4, "atol": 1e-4}
            np.testing.assert_allclose(results(kind)[name], was, err_msg=f"{kind} {name}", **close)


def smollm2_answers(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Greedy tokens after three lengths of the licence, with all of the cache and with a quarter of it."""
    import transformers

    licence = transformers.AutoTokenizer.from_pretrained(folder)((Path(__file__).parents[2] / "LICENSE").read_text())
    engine = build(tiny.config(folder, slots=1, capacity=1024, prompt_tokens=1024, chunk=256, kv=KVChoice(budget=1024)))
    for length in (40, 300, 900):
        for name, kv in {"full": KVChoice("full"), "quarter": KVChoice(budget=max(64, length // 4))}.items():
            asked = tiny.request(licence.input_ids[:length], kv=kv)
            tiny.enter(engine, asked)
            yield f"{name} {length}", tiny.decode(engine, 32)[0]


@pytest.mark.slow
def test_greedy_answers_of_smollm2_are_those_of_099e118(smollm2_dir: Path) -> None:
    with np.load(RECORDED / "smollm2.npz") as was:
        assert {name: was[name].tolist() for name in was} == dict(smollm2_answers(smollm2_dir))


def record() -> None:
    from ringkv.residency.locate import locate

    RECORDED.mkdir(exist_ok=True)
    for kind in KINDS:
        np.savez_compressed(RECORDED / f"{kind.lower()}-{processor()}.npz", **results(kind))
    answers = {name: np.array(said, np.int32) for name, said in smollm2_answers(locate("smollm2"))}
    np.savez_compressed(RECORDED / "smollm2.npz", **answers)
    print(f"recorded {processor()}", file=sys.stderr)


if __name__ == "__main__":
    torch.set_num_threads(2)
    record()
