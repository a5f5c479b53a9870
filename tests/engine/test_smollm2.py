"""SmolLM2-135M itself against transformers, and under a budget far smaller than its prompt."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ringkv.base.cache_spec import PageFormat, SlotFormat
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from tests.engine import tiny

pytestmark = pytest.mark.slow
NEW = 64


@pytest.fixture(scope="module")
def prompt(smollm2_dir: Path) -> list[int]:
    """Real text that the repository ships: the licence's beginning."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2_dir)
    licence = Path(__file__).parents[2] / "LICENSE"
    ids: list[int] = tokenizer(licence.read_text()).input_ids
    return ids[:700]


def config(folder: Path, **changes: Any) -> Any:
    usual = {
        "kv": KVChoice("full", budget=1024, select=SnapKV(window=64)),
        "capacity": 1024,
        "prompt_tokens": 1024,
        "chunk": 256,
    }
    return tiny.config(folder, slots=1, **{**usual, **changes})


def test_greedy_continuation_equals_transformers_token_by_token(smollm2_dir: Path, prompt: list[int]) -> None:
    engine = build(config(smollm2_dir))
    tiny.enter(engine, tiny.request(prompt))
    ours, logits = tiny.decode(engine, NEW)

    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32).eval()
    with torch.inference_mode():
        theirs = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            do_sample=False,
            temperature=None,
            top_p=None,
        )[0, len(prompt) :].tolist()
        want = model(torch.tensor([prompt + theirs])).logits[0, len(prompt) - 1 : -1]
    assert ours == theirs
    torch.testing.assert_close(logits, want, atol=2e-3, rtol=1e-3)


def test_a_prompt_far_longer_than_the_budget_goes_on_in_the_prompts_language(
    smollm2_dir: Path, prompt: list[int]
) -> None:
    """Perplexity of the text's true continuation stays within reach of the full cache's, in an eighth of its memory."""
    losses = {}
    for name, kv in {"full": KVChoice("full"), "snapstream": KVChoice(budget=80, sinks=4, recent=24)}.items():
        engine = build(config(smollm2_dir, kv=KVChoice("full", budget=1024)))
        tiny.enter(engine, tiny.request(prompt[:640], kv=kv))
        _, logits = tiny.decode(engine, 60, forced=prompt[640:])
        losses[name] = torch.nn.functional.cross_entropy(logits, torch.tensor(prompt[640:])).item()
    assert losses["full"] < losses["snapstream"] + 0.05
    assert losses["snapstream"] < losses["full"] + 1.0


def test_a_needle_in_evicted_tokens_is_found_only_if_its_page_is_recalled(smollm2_dir: Path, prompt: list[int]) -> None:
    """The question comes after the prompt, whose end does not hint at it. A quarter of the tokens is kept, or read."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2_dir)
    needle = tokenizer(" The pass key is 48135. Remember it: 48135 is the pass key.\n").input_ids
    question = tokenizer("\n\nWhat is the pass key? The pass key is").input_ids
    tokens = [*prompt[:300], *needle, *prompt[300:640]]
    found = {}
    for policy in ("full", "arkvale", "snapstream"):
        kv = KVChoice(policy, budget=None if policy == "full" else 176, select=SnapKV(window=32))
        reading = PageFormat(16) if policy == "arkvale" else "everything"
        engine = build(config(smollm2_dir, kv=kv, slot_format=SlotFormat(reading=reading)))
        tiny.enter(engine, tiny.request(tokens, kv=kv))
        tiny.decode(engine, len(question), forced=question)
        found[policy] = "48135" in tokenizer.decode(tiny.decode(engine, 9)[0])
    assert found == {"full": True, "arkvale": True, "snapstream": False}
