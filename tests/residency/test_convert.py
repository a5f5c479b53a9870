"""A tiny GGUF is converted once, also after interruptions and in several threads."""

import errno
import os
import shutil
from pathlib import Path
from threading import Thread

import pytest
import tokenizers

from ringkv.base.errors import BadCache, BadWeights, PullFailed, UnsupportedModel
from ringkv.machine import seal
from ringkv.machine.seal import broken
from ringkv.models.config import load_config
from ringkv.residency.convert import convert, converted_path, file_key, is_converted
from ringkv.text.generation_config import sampling_of
from ringkv.weights.checkpoint import Checkpoint
from ringkv.weights.gguf import convert as gguf_convert
from tests.residency.conftest import TOKENIZER
from tests.weights.tiny_gguf import tiny_model, write_tiny


@pytest.fixture
def target(tmp_cache: Path) -> Path:
    return converted_path("tiny", "some source")


def left(target: Path) -> set[str]:
    return {path.name for path in target.parent.iterdir() if path.suffix != ".lock"}


def test_a_conversion_is_a_directory_in_hugging_face_layout(tiny_gguf: Path, target: Path) -> None:
    directory = convert(tiny_gguf, target)
    config = load_config(directory)
    assert (config.architecture, config.vocab_size, config.eos_ids) == ("LlamaForCausalLM", 258, (256,))
    assert Checkpoint(directory).shapes()["lm_head.weight"] == (258, 64)
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode("the path, é").ids) == "the path, é"
    assert tokenizer.encode("th").ids == [257]
    assert left(target) == {target.name}
    assert sampling_of(directory) == {}


def test_a_conversion_has_the_sampling_of_its_catalogue(tiny_gguf: Path, target: Path) -> None:
    assert sampling_of(convert(tiny_gguf, target, sampling={"temperature": 0.2})) == {"temperature": 0.2}


def test_a_second_conversion_finds_the_first(tiny_gguf: Path, target: Path) -> None:
    before = (convert(tiny_gguf, target) / "model.safetensors").stat()
    tiny_gguf.unlink()
    after = (convert(tiny_gguf, target) / "model.safetensors").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_conversions_at_once_convert_once(tiny_gguf: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    write = gguf_convert.write_weights
    monkeypatch.setattr(gguf_convert, "write_weights", lambda *args: (written.append(1), write(*args)))
    threads = [Thread(target=convert, args=(tiny_gguf, target)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert written == [1]
    assert left(target) == {target.name}


@pytest.mark.parametrize("stage", ["reading", "converting weights", "writing the tokenizer"])
def test_an_interrupted_conversion_leaves_nothing(stage: str, tiny_gguf: Path, target: Path) -> None:
    def interrupt(_: int, __: int, what: str) -> None:
        if what.startswith(stage):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(tiny_gguf, target, interrupt)
    assert left(target) == set()
    assert load_config(convert(tiny_gguf, target)).vocab_size == 258


def test_files_of_a_killed_conversion_are_replaced(tiny_gguf: Path, target: Path) -> None:
    partial = target.with_name(target.name + ".partial")
    partial.mkdir(parents=True)
    (partial / "model.safetensors").write_bytes(b"half")
    convert(tiny_gguf, target)
    assert left(target) == {target.name}


def test_a_truncated_file_leaves_nothing(tiny_gguf: Path, target: Path) -> None:
    tiny_gguf.write_bytes(tiny_gguf.read_bytes()[:-5000])
    with pytest.raises(BadWeights, match="truncated or corrupt"):
        convert(tiny_gguf, target)
    assert left(target) == set()


def test_a_model_that_is_not_implemented_is_refused_before_its_weights_are_written(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_convert, "write_weights", lambda *_: pytest.fail("weights were written"))
    metadata = {**TOKENIZER, "qwen2.attention.sliding_window": 64}
    path = write_tiny(tmp_path / "x.gguf", tiny_model("Qwen2", vocab_size=258), metadata=metadata)
    with pytest.raises(UnsupportedModel, match="sliding_window 64"):
        convert(path, target)
    assert left(target) == set()


def test_a_full_disk_is_refused_before_weights_are_written(
    tiny_gguf: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2_000_000})())
    with pytest.raises(PullFailed, match="are free"):
        convert(tiny_gguf, target)
    assert left(target) == set()


def test_tensors_that_do_not_fit_the_metadata_are_refused_before_weights_are_written(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_convert, "write_weights", lambda *_: pytest.fail("weights were written"))
    metadata = {**TOKENIZER, "llama.attention.head_count": 5, "llama.attention.head_count_kv": 5}
    path = write_tiny(tmp_path / "x.gguf", tiny_model("Llama", vocab_size=258), metadata=metadata)
    with pytest.raises(BadWeights, match=r"x\.gguf .*q_proj\.weight \[64, 64\] .*\[80, 64\]"):
        convert(path, target)
    assert left(target) == set()


def test_a_number_of_layers_that_no_model_has_is_refused(tmp_path: Path, target: Path) -> None:
    metadata = {**TOKENIZER, "llama.block_count": 10**9}
    path = write_tiny(tmp_path / "x.gguf", tiny_model("Llama", vocab_size=258), metadata=metadata)
    with pytest.raises(BadWeights, match=r"x\.gguf .*num_hidden_layers 1000000000"):
        convert(path, target)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_file_that_changed_on_disk_is_named_and_all_are_converted_again(
    name: str, tiny_gguf: Path, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = convert(tiny_gguf, target) / name
    whole = (target / "model.safetensors").read_bytes()
    content = bytearray(file.read_bytes())
    content[-9] ^= 1
    file.write_bytes(content)
    assert is_converted(target) is False
    assert name in caplog.text
    convert(tiny_gguf, target)
    assert (target / "model.safetensors").read_bytes() == whole
    assert is_converted(target)
    assert left(target) == {target.name}


def test_a_changed_conversion_that_cannot_be_deleted_is_named(
    tiny_gguf: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (convert(tiny_gguf, target) / "config.json").write_text("{}")
    rmtree = shutil.rmtree

    def keep(path: Path, ignore_errors: bool = False) -> None:
        if path != target:
            rmtree(path, ignore_errors)
        elif not ignore_errors:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "rmtree", keep)
    with pytest.raises(BadCache, match=rf"{target} .*Permission denied"):
        convert(tiny_gguf, target)
    assert left(target) == {target.name}


def test_files_are_read_again_only_if_they_were_touched(
    tiny_gguf: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, read = convert(tiny_gguf, target) / "model.safetensors", []
    monkeypatch.setattr(seal, "broken", lambda folder: read.append(folder) or broken(folder))
    assert is_converted(target)
    assert read == []
    os.utime(weights)
    assert is_converted(target)
    assert is_converted(target)
    assert read == [target]


def test_a_touched_conversion_in_a_cache_that_cannot_be_written_is_verified_each_time(
    tiny_gguf: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(convert(tiny_gguf, target) / "model.safetensors")
    seen: list[str] = []

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    for _ in range(2):
        assert is_converted(target, lambda _, __, what: seen.append(what))
    assert seen == [f"verifying {target.name}"] * 2


def test_a_file_that_changed_is_another_source(tiny_gguf: Path) -> None:
    before = file_key(tiny_gguf)
    assert file_key(tiny_gguf) == before
    os.utime(tiny_gguf, ns=(0, 5))
    assert file_key(tiny_gguf) != before


def test_a_name_becomes_a_safe_folder_name(tmp_cache: Path) -> None:
    path = converted_path("a b/../c", "source")
    assert path.parent == tmp_cache / "converted"
    assert path.name.startswith("a-b-..-c-")
