"""Echo: puts the prompt before a completion's text."""

from collections.abc import Sequence
from dataclasses import replace

from ringkv.server.generation import TokenOutput
from ringkv.text.tokenizer import Tokenizer


class Echo:
    """One prompt as token outputs. Special tokens are shown, except a leading beginning-of-sequence token."""

    def __init__(self, prompt: Sequence[int], tokenizer: Tokenizer) -> None:
        self._outputs: list[TokenOutput] = []
        detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
        self._length = 0
        for token in prompt:
            is_bos = not self._outputs and token == tokenizer.bos_id
            text = "" if is_bos else detokenizer.push(token)
            self._outputs.append(TokenOutput(token, text, self._length, is_first=False))
            self._length += len(text)
        if self._outputs and (rest := detokenizer.finish()):
            self._outputs[-1] = replace(self._outputs[-1], text=self._outputs[-1].text + rest)
            self._length += len(rest)

    def before(self, outputs: Sequence[TokenOutput]) -> list[TokenOutput]:
        """Shift the outputs' offsets by the prompt's length, and put the prompt before a choice's first output.

        The prompt's first token has no log-probability.
        """
        shifted = [replace(output, offset=output.offset + self._length) for output in outputs]
        if not outputs[0].is_first:
            return shifted
        prompt_logprobs = outputs[0].prompt_logprobs
        values = [None, *prompt_logprobs] if prompt_logprobs else [None] * len(self._outputs)
        return [*(replace(one, logprob=value) for one, value in zip(self._outputs, values, strict=True)), *shifted]
