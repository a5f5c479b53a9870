"""load: an LLM for a command line, with what takes long shown."""

from typing import TYPE_CHECKING

from ringkv.base.progress import Progress
from ringkv.cli.options import EngineOptions

if TYPE_CHECKING:
    from ringkv.llm.llm import LLM


def load(engine: EngineOptions, tell: Progress) -> "LLM":
    """The model is found before torch is loaded, so that a wrong name is refused at once. Raises what `LLM` raises."""
    from ringkv.residency.locate import locate

    folder = locate(engine.model, tell)
    tell(0, 0, "loading torch")
    from ringkv.llm.llm import LLM

    return LLM(folder, on_progress=tell, **vars(engine.options()))
