"""ringkv: long-context language models in a fixed amount of key-value memory per request.

    from ringkv import LLM, SamplingParams
    print(LLM("smollm2", kv_budget=1024).generate("The capital of France is").text)

Importing ringkv stays quick: torch loads when an `LLM` is made.
"""

from typing import TYPE_CHECKING, Any

from ringkv.base.kv import KVChoice
from ringkv.base.sampling import SamplingParams
from ringkv.base.version import VERSION
from ringkv.base.waiting import spin_briefly

if TYPE_CHECKING:
    from ringkv.llm.llm import LLM as LLM

spin_briefly()

__version__ = VERSION
__all__ = ["LLM", "KVChoice", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from ringkv.llm.llm import LLM

        return LLM
    raise AttributeError(f"module 'ringkv' has no attribute {name!r}")
