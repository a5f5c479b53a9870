"""bits: whether this commit answers with the bits of an earlier one: greedy tokens, kept entries and logits.

    python -m bench.bits f512e044 [--cases plain,int8] [--models smollm2,llama,gemma3,deepseek]

Each case is an engine of its own in a process of the commit, on SmolLM2 or on a tiny random model that transformers
makes. A prompt of 1,500 tokens (300 for tiny models) is compressed into two slots and decoded for 80 steps, so that
rings wrap; a digest covers each step's logits. A case that one of the commits refuses says so.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bench.arguments import command_line
from bench.beside import BUILT, checked_out, of_tree
from bench.data import REPOSITORY
from bench.results import keep, table

STEPS = 80


class Sizes(NamedTuple):
    """Tokens of the prompt, and entries of a slot."""

    prompt: int
    budget: int


SIZES, TINY_SIZES = {"smollm2": Sizes(1500, 256)}, Sizes(300, 96)
CASES: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "float32": {"dtype": "float32"},
    "compiled": {"graphs": "compiled"},
    "full": {"kv_policy": "full", "kv_budget": None, "output_tokens": STEPS + 1},
    "streaming": {"kv_policy": "streaming"},
    "snapkv": {"kv_policy": "snapkv"},
    "scissorhands": {"kv_policy": "scissorhands", "kv_review": 16},
    "tova": {"kv_select": "tova"},
    "keydiff": {"kv_select": "keydiff"},
    "kvzip": {"kv_select": "kvzip"},
    "int8": {"kv_format": "int8"},
    "int4": {"kv_format": "int4"},
    "zipcache": {"kv_format": "zipcache"},
    "arkvale": {"kv_policy": "arkvale"},
    "arkvale 16": {"kv_policy": "arkvale", "kv_page": 16},
    "arkvale int8": {"kv_policy": "arkvale", "kv_format": "int8"},
    "global": {"kv_heads": "global"},
    "drafts": {"speculate": 3},
    "workspace": {"prefill_workspace": 200, "chunk": 32},
}
TINY: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("LlamaConfig", {"num_key_value_heads": 2, "head_dim": 64}),
    "odd-width": ("LlamaConfig", {"num_key_value_heads": 2, "head_dim": 40}),
    "gemma3": ("Gemma3TextConfig", {"num_key_value_heads": 1, "head_dim": 64, "sliding_window": 64}),
    "deepseek": (
        "DeepseekV3Config",
        {
            "num_key_value_heads": 4,
            "q_lora_rank": None,
            "kv_lora_rank": 96,
            "qk_rope_head_dim": 32,
            "qk_nope_head_dim": 32,
            "v_head_dim": 32,
            "first_k_dense_replace": 6,
        },
    ),
}
_SMALL = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
WORKER = f"""{BUILT}
import hashlib
import numpy
from ringkv.base.engine import prefill
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams

def digest(*arrays):
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]

vocab = engine.limits.vocab
tokens = tuple((i * i * 31 + i * 7 + i // 11) % vocab for i in range(int(sys.argv[3])))
request = Request("bits", tokens, SamplingParams(temperature=0.0, max_tokens={STEPS} + 1, ignore_eos=True))
engine.admit(request)
prefill(engine, request)
kept = [layer for layer in engine.kept(0, engine.default_kv)]
engine.insert(0, 0, request)
engine.insert(0, 1, request)
logits, answers = [engine.batch.logits[0].numpy().copy()], []
for step in range({STEPS}):
    runs = engine.sample().read()[:2]
    answers.append([sampled.token for sampled in runs[0]])
    assert answers[-1] == [sampled.token for sampled in runs[1]], "two slots of one prompt differ"
    last = [token for run in answers for token in run][-3:]
    drafts = {{slot: last for slot in (0, 1)}} if engine.limits.drafts else None
    engine.forward(drafts)
    logits.append(engine.batch.logits[0].numpy().copy())
tokens = digest(numpy.array([token for answer in answers for token in answer]))
print(json.dumps({{"tokens": tokens, "kept": digest(*kept), "logits": digest(*logits)}}))
"""


def main() -> None:
    parser = command_line(__doc__, cases=",".join(CASES), models=",".join(("smollm2", *TINY)))
    parser.add_argument("commit")
    args = parser.parse_args()
    figures: list[dict[str, Any]] = []
    with checked_out(args.commit) as before, TemporaryDirectory() as scratch:
        for model in args.models.split(","):
            location = str(_tiny(model, Path(scratch))) if model in TINY else model
            for name in args.cases.split(","):
                sizes = SIZES.get(model, TINY_SIZES)
                earlier, now = (_run(sources, location, sizes, CASES[name]) for sources in (before, REPOSITORY))
                figures.append({"model": model, "case": name, "before": earlier, "now": now})
                print(_row(figures[-1]), flush=True)
    text = table(("model", "case", "tokens", "kept", "logits"), [_row(figure) for figure in figures])
    keep("bits", {"before": args.commit, "steps": STEPS}, figures, text)
    print(text)
    if any(word in ("differ", "lost") for figure in figures for word in _row(figure)):
        sys.exit(1)


def _run(sources: Path, model: str, sizes: Sizes, case: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of a case under a commit, or why it was refused."""
    usual = {"slots": 2, "prompt_tokens": sizes.prompt + 4, "kv_budget": sizes.budget, "graphs": "off", "threads": 2}
    command = [sys.executable, "-c", WORKER, model, json.dumps({**usual, **case}), str(sizes.prompt)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **of_tree(sources))
    if done.returncode:
        return {"refused": (done.stderr.strip().splitlines() or ["?"])[-1][:200]}
    digests: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return digests


def _row(figure: Mapping[str, Any]) -> tuple[str, ...]:
    before, now = figure["before"], figure["now"]
    if "refused" in before or "refused" in now:
        words = {(True, True): "refused by both", (True, False): "new"}
        word = words.get(("refused" in before, "refused" in now), "lost")
        return figure["model"], figure["case"], word, word, word
    words = ("equal" if before[part] == now[part] else "differ" for part in ("tokens", "kept", "logits"))
    return figure["model"], figure["case"], *words


def _tiny(model: str, scratch: Path) -> Path:
    """Write a tiny random checkpoint that transformers makes; the same each time."""
    import torch
    import transformers

    name, settings = TINY[model]
    config = getattr(transformers, name)(**_SMALL, **settings)
    torch.manual_seed(0)
    folder = scratch / model
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()
