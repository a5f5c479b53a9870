"""ringkv: long-context language models in a fixed amount of key-value memory per request.

    from ringkv import LLM, SamplingParams
    print(LLM("smollm2", kv_budget=1024).generate("The capital of France is").text)

    LLM              loads a model and answers prompts
    Result           an answer: text, tokens, log-probabilities, cache facts
    SamplingParams   how tokens of an answer are sampled
    KVChoice         which tokens a request keeps in its cache
    SnapKV, TOVA, KeyDiff, KVzip
                     its selectors, which score the tokens of a prompt
    Selector         base of selectors from outside this package
    grammar          what an answer must be: JSON Schema, regular expressions, choices
    errors           every exception that ringkv raises

Importing ringkv loads nothing: a name brings its module when it is asked for, and torch loads when an `LLM` is made.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ringkv.base.version import VERSION
from ringkv.machine.environment import spin_briefly, use_huge_pages

if TYPE_CHECKING:
    from ringkv.base import errors as errors
    from ringkv.base.kv import KVChoice as KVChoice
    from ringkv.base.sampling import SamplingParams as SamplingParams
    from ringkv.base.selectors import TOVA as TOVA
    from ringkv.base.selectors import KeyDiff as KeyDiff
    from ringkv.base.selectors import KVzip as KVzip
    from ringkv.base.selectors import Selector as Selector
    from ringkv.base.selectors import SnapKV as SnapKV
    from ringkv.llm.llm import LLM as LLM
    from ringkv.llm.result import Result as Result
    from ringkv.text import grammar as grammar

spin_briefly()
use_huge_pages()

__version__ = VERSION
__all__ = [
    "LLM",
    "TOVA",
    "KVChoice",
    "KVzip",
    "KeyDiff",
    "Result",
    "SamplingParams",
    "Selector",
    "SnapKV",
    "errors",
    "grammar",
]

_SELECTORS = ("SnapKV", "TOVA", "KeyDiff", "KVzip", "Selector")

_CLASSES = {
    "LLM": "ringkv.llm.llm",
    "Result": "ringkv.llm.result",
    "KVChoice": "ringkv.base.kv",
    "SamplingParams": "ringkv.base.sampling",
    **dict.fromkeys(_SELECTORS, "ringkv.base.selectors"),
}
_MODULES = {"errors": "ringkv.base.errors", "grammar": "ringkv.text.grammar"}


def __getattr__(name: str) -> Any:
    if name in _CLASSES:
        return getattr(import_module(_CLASSES[name]), name)
    if name in _MODULES:
        return import_module(_MODULES[name])
    raise AttributeError(f"module 'ringkv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
