"""Serving: what every endpoint needs, made once."""

from dataclasses import dataclass

from ringkv.base.errors import UnknownModel
from ringkv.server.channel import EngineChannel
from ringkv.server.metrics import Metrics
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.guide import Guides
from ringkv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Serving:
    """names: what clients may call the model; the first is its own name, the others are aliases."""

    engine: EngineChannel
    tokenizer: Tokenizer
    template: ChatTemplate | None
    names: tuple[str, ...]
    metrics: Metrics
    created: int  # seconds since 1970
    guides: Guides

    def model(self, asked: str | None) -> str:
        """The name to answer under: what was asked for, or our first name where nothing was."""
        if asked is None or asked in self.names:
            return asked or self.names[0]
        raise UnknownModel(f"model {asked!r} is not served here; ask for {' or '.join(self.names)}")
