"""The training example: its models are those that ringkv serves, and a stop changes nothing."""

from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from examples.train.batches import Batches, Stage
from examples.train.export import export
from examples.train.loop import Trainer
from examples.train.model import Decoder
from examples.train.recall import IGNORED, Recall
from examples.train.sizes import Sizes
from examples.train.variants import VARIANTS
from examples.train.vocabulary import BEGIN, END
from ringkv.base.kv import KVChoice
from ringkv.base.selectors import SnapKV
from ringkv.engine.build import build
from tests.engine import tiny

STAGES = (Stage((96,), 2, tokens=192, recall=2.0), Stage((64, 96), 3, tokens=192, recall=2.0))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """One token for each byte: training a vocabulary takes ten seconds."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE({token: place for place, token in enumerate([BEGIN, END, *alphabet])}, []))
    bytewise.pre_tokenizer, bytewise.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    bytewise.add_special_tokens([BEGIN, END])
    return bytewise


def small(name: str, tokenizer: Tokenizer) -> tuple[Sizes, Decoder]:
    sizes = Sizes(tokenizer.get_vocab_size(), hidden=64, head_dim=32, intermediate=48, context=256, rank=48, rotated=16)
    torch.manual_seed(3)
    decoder = VARIANTS[name].decoder(sizes)
    with torch.no_grad():
        for parameter in decoder.parameters():  # norms start out trivial, which would hide mistakes
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return sizes, decoder


@pytest.mark.parametrize("name", VARIANTS)
def test_exported_logits_are_those_of_training(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    sizes, decoder = small(name, tokenizer)
    export(decoder, VARIANTS[name], sizes, tokenizer, tmp_path)
    tokens = torch.randint(2, sizes.vocabulary, (70,)).tolist()
    with torch.no_grad():
        want = decoder.logits(torch.tensor([tokens]))[0, -1]

    engine = build(tiny.config(tmp_path, capacity=128, kv=KVChoice("full", budget=128, select=SnapKV(window=8))))
    torch.testing.assert_close(tiny.stage(engine, tiny.request(tokens)), want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["gqa", "mla", "moe"])  # transformers has no layers that share keys and values
def test_transformers_reads_the_exported_checkpoint(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    sizes, decoder = small(name, tokenizer)
    export(decoder, VARIANTS[name], sizes, tokenizer, tmp_path)
    tokens = torch.randint(2, sizes.vocabulary, (1, 70))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, decoder.logits(tokens), atol=1e-4, rtol=0)


def test_a_row_asks_for_numbers_that_its_list_has(tokenizer: Tokenizer) -> None:
    row = Recall(tokenizer, 900, values=900, sentences=0.5).row(Random(5))
    text = tokenizer.decode(row.tokens)
    lines = text[: text.index("Which")].split("\n")
    asked = [place for place in row.answers if tokenizer.decode(row.tokens[: place + 1]).endswith(":")]

    assert asked
    for place in asked:
        answer = [target for target in row.targets[place : place + 7] if target != IGNORED]  # a space and six digits
        assert tokenizer.decode(row.tokens[: place + 1]).rpartition("\n")[2] + tokenizer.decode(answer) in lines
    assert all(row.tokens[place + 1] == row.targets[place] for place in row.answers)


def test_training_that_stopped_ends_with_the_same_weights(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def train(path: Path, *stops: int | None) -> Mapping[str, torch.Tensor]:
        for until in stops:  # each from a new process's state: another decoder, and the checkpoint
            _, decoder = small("moe", tokenizer)
            trainer = Trainer(decoder, Batches(tokenizer, seed=1), STAGES, 1, path)
            is_done = trainer.run(lambda line: None, until)
            assert is_done == (until is None)
        return decoder.state_dict()

    whole, stopped = train(tmp_path / "whole.pt", None), train(tmp_path / "stopped.pt", 1, 3, None)
    assert all(torch.equal(whole[name], stopped[name]) for name in whole)
