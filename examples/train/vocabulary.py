"""vocabulary: a byte-level BPE tokenizer, trained on the text and on the words of the recall task."""

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from examples.train.text import files
from ringkv.evaluation.tasks import recall
from ringkv.evaluation.tasks.texts import words

SIZE = 32_768
BEGIN, END = "<begin>", "<end>"
# Words and numbers begin with their space, numbers are cut after three digits, and a line's end joins its full stop.
SPLIT = r" ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
OFTEN = 200  # repetitions that make one token of a word of the task


def load(folder: Path, size: int = SIZE) -> Tokenizer:
    """Return the tokenizer of `folder`, trained at the first call."""
    path = folder / "tokenizer.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        train(size).save(str(path))
        names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": END}
        (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return Tokenizer.from_file(str(path))


def train(size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def _corpus() -> Iterator[str]:
    yield from files()
    numbers = [f"{number:0{digits}}" for digits in (1, 2, 3) for number in range(10**digits)]
    task = [*words("noun"), *numbers]
    draft = recall.draft("words", 1, 0.5)
    every = draft.context + draft.question + draft.begin + "\n".join(f"{one}\n {one}" for one in task)
    yield from (every for _ in range(OFTEN))
