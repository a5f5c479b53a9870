"""The targets by name. A new target is a file beside this one and a line here."""

from collections.abc import Mapping

from bench.fuzz.channel import CHANNEL
from bench.fuzz.configs import CONFIGS
from bench.fuzz.gguf import GGUF_FILES
from bench.fuzz.grammars import GRAMMARS
from bench.fuzz.http import HTTP
from bench.fuzz.safetensors import SAFETENSORS
from bench.fuzz.target import Target
from bench.fuzz.templates import TEMPLATES
from bench.fuzz.tokenizers import TOKENIZERS

TARGETS: Mapping[str, Target] = {
    "channel": CHANNEL,
    "config": CONFIGS,
    "gguf": GGUF_FILES,
    "grammars": GRAMMARS,
    "http": HTTP,
    "safetensors": SAFETENSORS,
    "templates": TEMPLATES,
    "tokenizers": TOKENIZERS,
}
