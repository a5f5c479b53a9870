"""Make the LLM of a command, with progress."""

from typing import TYPE_CHECKING

from ringkv.base.progress import Progress
from ringkv.plan.options import Options

if TYPE_CHECKING:
    from ringkv.llm.llm import LLM


def load(model: str, options: Options, progress: Progress) -> "LLM":
    """Raises what `LLM` raises; invalid options are refused before torch is loaded."""
    from ringkv.llm.llm import LLM

    return LLM(model, on_progress=progress, **vars(options))
