"""bits: whether this commit answers with the bits of an earlier one: greedy tokens, kept entries and logits.

    python -m bench.bits f512e044 [--cases plain,int8] [--models smollm2,llama,gemma3,deepseek]

Each case is an engine of its own in a process of the commit, on SmolLM2 or on a tiny random model that transformers
makes. A prompt of 1,500 tokens (300 for tiny models) is compressed into two slots and decoded for 80 steps, so that
rings wrap; a digest covers each step's logits. A case that one of the commits refuses says so.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.beside import checked_out
from bench.data import REPOSITORY
from bench.results import keep, table

STEPS = 80
PROMPTS = {"smollm2": 1500}
TINY_PROMPT = 300
BUDGET = {"smollm2": 256}
TINY_BUDGET = 96
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
    "expected": {"kv_select": "expected"},
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
WORKER = f"""
import hashlib, json, sys
from pathlib import Path
import torch
from ringkv.base.engine import prefill
from ringkv.base.request import Request
from ringkv.base.sampling import SamplingParams
from ringkv.engine.build import build
from ringkv.models.config import load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.residency.locate import locate

def digest(*arrays):
    return hashlib.sha256(b"".join(one.tobytes() for one in arrays)).hexdigest()[:16]

given = json.loads(sys.argv[1])
folder = locate(given["model"])
engine = build(resolve(folder, load_config(folder), Options(**given["options"]), available_bytes()))
vocab = engine.limits.vocab
tokens = tuple((i * i * 31 + i * 7 + i // 11) % vocab for i in range(given["prompt"]))
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
import numpy
print(json.dumps({{"tokens": digest(numpy.array([t for run in answers for t in run])), "kept": digest(*kept),
                  "logits": digest(*logits)}}))
"""


def main() -> None:
    args = _arguments()
    figures: list[dict[str, Any]] = []
    with checked_out(args.commit) as before, TemporaryDirectory() as scratch:
        for model in args.models.split(","):
            location = str(_tiny(model, Path(scratch))) if model in TINY else model
            for name in args.cases.split(","):
                given = {"model": location, "prompt": PROMPTS.get(model, TINY_PROMPT), "options": _options(model, name)}
                digests = [_run(sources, given) for sources in (before, REPOSITORY)]
                figures.append({"model": model, "case": name, "before": digests[0], "now": digests[1]})
                print(_row(figures[-1]), flush=True)
    text = table(("model", "case", "tokens", "kept", "logits"), [_row(figure) for figure in figures])
    keep("bits", {"before": args.commit, "steps": STEPS}, figures, text)
    print(text)
    if any(word in ("differ", "lost") for figure in figures for word in _row(figure)):
        sys.exit(1)


def _options(model: str, case: str) -> dict[str, Any]:
    prompt = PROMPTS.get(model, TINY_PROMPT)
    usual = {
        "slots": 2,
        "prompt_tokens": prompt + 4,
        "kv_budget": BUDGET.get(model, TINY_BUDGET),
        "graphs": "off",
        "threads": 2,
    }
    return {**usual, **CASES[case]}


def _run(sources: Path, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of a case under a commit, or why it was refused."""
    environment = os.environ | {"PYTHONPATH": str(sources / "src")}
    command = [sys.executable, "-c", WORKER, json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=sources, env=environment, check=False)
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

    kind, settings = TINY[model]
    config = getattr(transformers, kind)(**_SMALL, **settings)
    torch.manual_seed(0)
    folder = scratch / model
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def _arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--models", default=",".join(("smollm2", *TINY)))
    return parser.parse_args(given)


if __name__ == "__main__":
    main()
