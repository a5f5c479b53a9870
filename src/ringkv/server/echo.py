"""echo: a completion that begins with its prompt."""

from collections.abc import Sequence
from dataclasses import replace

from ringkv.server.generation import Piece
from ringkv.text.tokenizer import Tokenizer


class Echo:
    """One prompt, as pieces that stand before those of an answer. Special tokens are shown, but not a first one."""

    def __init__(self, prompt: Sequence[int], tokenizer: Tokenizer) -> None:
        self._pieces: list[Piece] = []
        detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
        self._length = 0
        for token in prompt:
            is_begin = not self._pieces and token == tokenizer.bos_id
            text = "" if is_begin else detokenizer.push(token)
            self._pieces.append(Piece(token, text, self._length, is_first=False))
            self._length += len(text)
        if self._pieces and (rest := detokenizer.finish()):
            self._pieces[-1] = replace(self._pieces[-1], text=self._pieces[-1].text + rest)
            self._length += len(rest)

    def before(self, pieces: Sequence[Piece]) -> list[Piece]:
        """The prompt before its answer's first pieces, its first token without a log-probability; others moved on."""
        moved = [replace(piece, offset=piece.offset + self._length) for piece in pieces]
        if not pieces[0].is_first:
            return moved
        values = [None, *pieces[0].prompt] if pieces[0].prompt else [None] * len(self._pieces)
        return [*(replace(one, logprob=value) for one, value in zip(self._pieces, values, strict=True)), *moved]
