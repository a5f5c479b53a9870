"""The targets by name. A new target is a file beside this one and a line here."""

from collections.abc import Mapping

from bench.fuzz.channel import CHANNEL
from bench.fuzz.grammars import GRAMMARS
from bench.fuzz.http import HTTP
from bench.fuzz.target import Target
from bench.fuzz.templates import TEMPLATES
from bench.fuzz.tokenizers import TOKENIZERS

TARGETS: Mapping[str, Target] = {
    "channel": CHANNEL,
    "grammars": GRAMMARS,
    "http": HTTP,
    "templates": TEMPLATES,
    "tokenizers": TOKENIZERS,
}
