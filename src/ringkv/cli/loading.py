"""load: an LLM for a command line, with what takes long shown."""

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ringkv.base.progress import Progress
from ringkv.cli.options import EngineOptions

if TYPE_CHECKING:
    from ringkv.llm.llm import LLM


def load(engine: EngineOptions, tell: Progress) -> "LLM":
    """One slot unless more are asked for. Raises what `LLM` raises."""
    tell(0, 0, "loading torch")
    from ringkv.llm.llm import LLM

    options = engine.options()
    options = replace(options, slots=1 if options.slots is None else options.slots)
    choices: dict[str, Any] = {one.name: getattr(options, one.name) for one in fields(options)}
    return LLM(engine.model, on_progress=tell, **choices)
