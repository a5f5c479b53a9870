"""Serving: the objects that all endpoints share."""

from dataclasses import dataclass

from ringkv.base.errors import UnknownModel
from ringkv.server.admission import Admission
from ringkv.server.channel import EngineChannel
from ringkv.server.drain import Drain
from ringkv.server.metrics import Metrics
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.guide import Guides
from ringkv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Serving:
    """names: the model's names; the first is its own, the others are aliases.

    timeout: seconds that a request may take, at most; None if there is no limit.
    """

    engine: EngineChannel
    tokenizer: Tokenizer
    template: ChatTemplate | None
    names: tuple[str, ...]
    metrics: Metrics
    created: int  # seconds since 1970
    guides: Guides
    admission: Admission
    drain: Drain
    timeout: float | None = None

    def model(self, requested: str | None) -> str:
        """Return the name for the response: the requested one, or the model's own. Raises UnknownModel."""
        if requested is None or requested in self.names:
            return requested or self.names[0]
        raise UnknownModel(f"model {requested!r} is not served here; use {' or '.join(self.names)}")
