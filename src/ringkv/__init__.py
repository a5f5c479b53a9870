"""ringkv: long-context language models in a fixed amount of key-value memory per request.

    from ringkv import LLM, SamplingParams
    print(LLM("smollm2", kv_budget=1024).generate("The capital of France is").text)

Importing ringkv loads nothing: a name brings its module when it is asked for, and torch loads when an `LLM` is made.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ringkv.base.pages import use_huge_pages
from ringkv.base.version import VERSION
from ringkv.base.waiting import spin_briefly

if TYPE_CHECKING:
    from ringkv.base.kv import KVChoice as KVChoice
    from ringkv.base.sampling import SamplingParams as SamplingParams
    from ringkv.llm.llm import LLM as LLM

spin_briefly()
use_huge_pages()

__version__ = VERSION
__all__ = ["LLM", "KVChoice", "SamplingParams"]

_HOMES = {"LLM": "ringkv.llm.llm", "KVChoice": "ringkv.base.kv", "SamplingParams": "ringkv.base.sampling"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ringkv' has no attribute {name!r}")
