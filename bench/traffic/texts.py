"""texts: stretches of real text with a given number of tokens."""

from itertools import chain
from random import Random

from bench.peers.workload import prompts
from bench.traffic.asks import Ask, Lengths
from ringkv.text.tokenizer import Tokenizer

PIECE = 20_000  # tokens that are read from the sources at once
PIECES = 12


class Texts:
    """Stretches of the sources of Python's standard library. A name gives the same stretch in every run."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids = list(chain.from_iterable(prompts(tokenizer, PIECES, PIECE)))

    def stretch(self, name: str, length: int) -> str:
        start = Random(name).randrange(len(self._ids) - length)
        return self._tokenizer.decode(self._ids[start : start + length])

    def ask(self, scope: str, name: str, wanted: Lengths, part: int) -> Ask:
        """Return a request of these lengths. scope: whose requests share parts. part: tokens of each part."""
        prompt = self._prompt(scope, name, wanted, part)
        return Ask(wanted.at, prompt, len(self._tokenizer.encode(prompt)), wanted.output)

    def _prompt(self, scope: str, name: str, wanted: Lengths, part: int) -> str:
        if wanted.parts is None:
            return self.stretch(f"{scope}/{name}", wanted.prompt)
        sizes = (min(part, wanted.prompt - part * place) for place in range(len(wanted.parts)))
        return "".join(
            self.stretch(f"{scope}/part {key} of {size}", size)
            for key, size in zip(wanted.parts, sizes, strict=True)
            if size > 0
        )
