"""Make the LLM of a command, with progress."""

from typing import TYPE_CHECKING

from ringkv.base.progress import Progress
from ringkv.cli.options import EngineOptions

if TYPE_CHECKING:
    from ringkv.llm.llm import LLM


def load(engine: EngineOptions, progress: Progress) -> "LLM":
    """Raises what `LLM` raises; invalid options are refused before torch is loaded."""
    from ringkv.llm.llm import LLM

    return LLM(engine.model, on_progress=progress, **vars(engine.options()))
