"""A tiny chat model on disk, and the command line run in this process."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from ringkv.cli.main import run
from ringkv.text.pieces import byte_alphabet
from tests.engine import tiny

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}<|im_start|>"
EOS = 257
SMALL = ("--graphs", "off", "--dtype", "float32", "--threads", "1", "--kv-budget", "64")


class Said(NamedTuple):
    """What a command line came to."""

    status: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The last line on stderr."""
        return self.err.splitlines()[-1]


Cli = Callable[..., Said]


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama whose tokens are bytes; then <|im_start|> = 256 and <|im_end|> = 257, which ends a text."""
    folder = tmp_path_factory.mktemp("tiny-chat")
    tiny.save(folder, "Llama", vocab_size=258, eos_token_id=EOS)
    inner = tokenizers.Tokenizer(models.BPE(vocab=byte_alphabet(), merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(name, special=True) for name in ("<|im_start|>", "<|im_end|>")])
    inner.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """Run one command line; arguments of any kind become text."""
    monkeypatch.delenv("RINGKV_DEBUG", raising=False)

    def call(*arguments: object) -> Said:
        capsys.readouterr()
        return Said(run([str(one) for one in arguments]), *capsys.readouterr())

    yield call
    logging.getLogger("ringkv").handlers.clear()
