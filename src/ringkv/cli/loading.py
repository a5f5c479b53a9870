"""load: an LLM for a command line, with what takes long shown."""

from typing import TYPE_CHECKING

from ringkv.base.progress import Progress
from ringkv.cli.options import EngineOptions

if TYPE_CHECKING:
    from ringkv.llm.llm import LLM


def load(engine: EngineOptions, tell: Progress) -> "LLM":
    """Raises what `LLM` raises; a choice that cannot be is refused before torch is loaded."""
    from ringkv.llm.llm import LLM

    return LLM(engine.model, on_progress=tell, **vars(engine.options()))
