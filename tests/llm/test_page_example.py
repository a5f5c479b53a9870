"""The web page's example document: the default model and its sibling find the fact that the page asks for.

SmolLM2-135M finds it in bfloat16 and misses it in float32, so nothing is promised of it.
"""

import re
from pathlib import Path

import pytest

from ringkv import LLM, KVChoice, SamplingParams
from ringkv.residency.catalogue import catalogue
from ringkv.residency.convert import is_converted
from ringkv.residency.locate import catalogue_directory
from ringkv.text.chat_template import ChatTemplate

PAGE = Path(__file__).resolve().parents[2] / "web" / "src" / "chat"


def page_constant(name: str) -> str:
    found = re.search(rf'const {name} = "?(.+?)"?;', (PAGE / "example.ts").read_text(encoding="utf-8"))
    assert found, name
    return found[1]


def check(folder: Path) -> None:
    """Ask as the page does: the document before the question, greedily, with the page's budget and a full cache."""
    log = (PAGE / "example.txt").read_text(encoding="utf-8").strip()
    content = f"{page_constant('NAME')}:\n\n{log}\n\n{page_constant('QUESTION')}"
    llm = LLM(folder, kv_policy="full", prompt_tokens=4096, output_tokens=64, slots=1, graphs="off")
    for kv in (KVChoice(budget=int(page_constant("BUDGET"))), KVChoice("full")):
        answer = llm.chat([{"role": "user", "content": content}], SamplingParams(max_tokens=64), kv=kv)
        assert "third step" in answer.text, (kv.policy, answer.text)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in catalogue() if name != "smollm2"])
def test_a_model_that_is_here_finds_the_fact_of_the_example(name: str) -> None:
    folder = catalogue_directory(catalogue()[name])
    if not is_converted(folder):
        pytest.skip(f"{name} is not in the cache folder; ringkv pull {name} fetches it")
    if not ChatTemplate.find(folder):
        pytest.skip(f"{name} is a base model, and the page asks in a conversation")
    check(folder)
