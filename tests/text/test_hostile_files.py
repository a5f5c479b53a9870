"""Tokenizer files with anything in them end in an error of one sentence."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringkv.base import json_file
from ringkv.base.errors import BadWeights, InvalidRequest
from ringkv.text import tokenizer, tokenizer_trial
from ringkv.text.chat_template import ChatTemplate
from ringkv.text.tokenizer import Tokenizer


def load(folder: Path) -> None:
    Tokenizer.from_directory(folder)
    ChatTemplate.from_directory(folder)


def refusal(folder: Path) -> str:
    with pytest.raises(BadWeights) as raised:
        load(folder)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Replace"}]}},
            "does not read",
        ),
        (
            {
                "decoder": {
                    "type": "Sequence",
                    "decoders": [
                        {"type": "ByteFallback"},
                        {"type": "Replace", "pattern": {"Regex": "x"}, "content": ""},
                    ],
                }
            },
            "does not read",
        ),
        ({"model": []}, "does not read"),
        ({"model": {"type": "BPE", "vocab": {"a": 2**31}, "merges": []}}, "token id 2,147,483,648"),
        ({"added_tokens": 5}, "does not read"),
    ],
)
def test_wrong_parts_of_a_tokenizer_are_refused(model_dir: Callable[..., Path], changes: Any, reason: str) -> None:
    folder = model_dir()
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | changes))
    assert reason in refusal(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_a_file_that_is_nested_deeply_is_refused(model_dir: Callable[..., Path], name: str) -> None:
    folder = model_dir()
    (folder / name).write_text('{"a": ' * 100_000 + "1" + "}" * 100_000)
    assert name in refusal(folder)


@pytest.mark.parametrize(
    "template", [5, [5], [{"name": "default"}], {"default": "x"}, [{"name": "default", "template": None}]]
)
def test_a_chat_template_of_another_type_is_refused(model_dir: Callable[..., Path], template: Any) -> None:
    assert "chat_template" in refusal(model_dir(tokenizer_config={"chat_template": template}))


def with_parts(folder: Path, **parts: Any) -> Path:
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | parts))
    return folder


HUGE = {"type": "Precompiled", "precompiled_charsmap": "AAAA////"}  # makes the library request 8 GB
HUGE_REASON = "takes more than 2 GB, or ends the process with SIGABRT"


def test_a_tokenizer_that_would_end_the_process_is_refused_on_every_load(
    model_dir: Callable[..., Path], tmp_cache: Path
) -> None:
    folder = with_parts(model_dir(), normalizer=HUGE)
    for _ in range(2):
        message = refusal(folder)
        assert str(folder / "tokenizer.json") in message
        assert HUGE_REASON in message


def test_a_tokenizer_is_tried_once_and_again_if_it_has_changed(
    model_dir: Callable[..., Path], tmp_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Any] = []
    run = tokenizer_trial.subprocess.run
    monkeypatch.setattr(
        tokenizer_trial.subprocess, "run", lambda command, **more: tried.append(command) or run(command, **more)
    )
    folder = model_dir()
    for _ in range(2):
        Tokenizer.from_directory(folder)
    assert len(tried) == 1
    Tokenizer.from_directory(with_parts(folder, truncation=None, version="1.0", normalizer={"type": "NFC"}))
    assert len(tried) == 2


def test_a_cache_folder_that_cannot_be_written_is_no_reason_to_refuse(
    model_dir: Callable[..., Path], tmp_cache: Path
) -> None:
    tmp_cache.write_text("a file")
    Tokenizer.from_directory(model_dir())


def test_a_cache_folder_that_cannot_be_entered_is_no_reason_to_refuse(
    model_dir: Callable[..., Path], tmp_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.is_relative_to(tmp_cache):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return os.stat(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", refuse)  # permissions do not hold root back
    Tokenizer.from_directory(model_dir())
    assert HUGE_REASON in refusal(with_parts(model_dir(), normalizer=HUGE))


def test_a_text_that_a_tokenizer_cannot_encode_is_refused_with_the_models_name(
    model_dir: Callable[..., Path],
) -> None:
    folder = model_dir()
    empty = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "", "vocab": {}}
    loaded = Tokenizer.from_directory(with_parts(folder, model=empty | {"max_input_chars_per_word": 9}))
    with pytest.raises(InvalidRequest, match=rf"{folder.name} .*WordPiece"):
        loaded.encode("x")


@pytest.mark.parametrize("field", ["bos_token_id", "eos_token_id"])
def test_a_token_id_that_is_too_large_is_refused(model_dir: Callable[..., Path], field: str) -> None:
    assert "token id 1,000,000,000,000" in refusal(model_dir(config={field: 10**30}, tokenizer_config={}))


def test_an_end_token_that_no_vocabulary_has_is_refused(model_dir: Callable[..., Path]) -> None:
    assert "token id" in refusal(model_dir(config={"eos_token_id": 10**30}))


def test_wrong_types_of_roles_count_as_absent(model_dir: Callable[..., Path]) -> None:
    folder = model_dir(
        config={"eos_token_id": [True, "x", 5.0, -1, 7]},
        tokenizer_config={"bos_token": 5, "eos_token": ["x"], "add_bos_token": "yes", "add_eos_token": {}},
    )
    assert Tokenizer.from_directory(folder).eos_ids == (7,)


def test_files_that_are_too_large_are_refused_unread(model_dir: Callable[..., Path], monkeypatch: Any) -> None:
    folder = model_dir(config={"x": "y" * 1000})
    monkeypatch.setattr(json_file, "LARGEST", 999)
    assert "config.json has 1,009 bytes" in refusal(folder)
    monkeypatch.setattr(tokenizer, "LARGEST_FILE", 99)
    assert "tokenizer.json has" in refusal(folder)
