import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from ringkv.base.errors import BadWeights, InvalidRequest, PromptTooLong, UnsupportedModel
from ringkv.text.tokenizer import Tokenizer
from tests.refusals import refusal

BEGIN, END = "<|begin|>", "<|end|>"


@given(text=st.text())
def test_ids_are_those_of_transformers(byte_level: Tokenizer, text: str):
    theirs = PreTrainedTokenizerFast(tokenizer_object=byte_level._inner)
    assert byte_level.encode(text) == theirs(text)["input_ids"]


def test_a_batch_encodes_like_its_texts_alone(byte_level: Tokenizer):
    texts = ["dog", "", "the fox 😀"]
    assert byte_level.encode_batch(texts) == [byte_level.encode(text) for text in texts]


@pytest.mark.parametrize(("tokens", "longest"), [(10, 65_536), (2_000, 128_000)])
def test_a_text_has_at_most_64_characters_for_each_token_that_fits(byte_level: Tokenizer, tokens: int, longest: int):
    byte_level.check_length("é" * longest, tokens)
    with refusal("input", f"{longest + 1:,} characters.* {tokens:,} tokens", PromptTooLong):
        byte_level.check_length("é" * (longest + 1), tokens, "input")


def test_eos_ids_are_the_union_of_all_files_each_once(model_dir: Callable[..., Path]):
    tokenizer = Tokenizer.from_directory(
        model_dir(
            config={"eos_token_id": 7}, generation_config={"eos_token_id": [9, 7]}, tokenizer_config={"eos_token": END}
        )
    )
    assert tokenizer.eos_ids == (7, 9, tokenizer.token_id(END))


def test_without_any_eos_there_are_no_eos_ids(model_dir: Callable[..., Path]):
    assert Tokenizer.from_directory(model_dir(config={"eos_token_id": None})).eos_ids == ()


def test_the_tokenizers_bos_overrides_the_configs(model_dir: Callable[..., Path]):
    directory = model_dir(config={"bos_token_id": 5}, special_tokens_map={"bos_token": {"content": BEGIN}})
    tokenizer = Tokenizer.from_directory(directory)
    assert tokenizer.bos_id == tokenizer.token_id(BEGIN)


def test_special_maps_roles_to_token_texts(model_dir: Callable[..., Path]):
    directory = model_dir(
        config={"eos_token_id": 5}, tokenizer_config={"eos_token": END, "pad_token": {"content": BEGIN}}
    )
    tokenizer = Tokenizer.from_directory(directory)
    assert (tokenizer.special["eos_token"], tokenizer.special["pad_token"]) == (END, BEGIN)
    assert "bos_token" not in tokenizer.special


def test_a_null_bos_token_means_no_bos(model_dir: Callable[..., Path]):
    directory = model_dir(config={"bos_token_id": 5}, tokenizer_config={"bos_token": None})
    assert Tokenizer.from_directory(directory).bos_id is None


def test_without_a_bos_token_the_configs_id_is_used(model_dir: Callable[..., Path]):
    assert Tokenizer.from_directory(model_dir(config={"bos_token_id": 5}, tokenizer_config={})).bos_id == 5


@pytest.mark.parametrize("bos", [True, False, None])
@pytest.mark.parametrize("eos", [True, False, None])
def test_add_bos_and_add_eos_add_the_tokens_to_a_text(
    model_dir: Callable[..., Path], bos: bool | None, eos: bool | None
):
    adds = {"add_bos_token": bos, "add_eos_token": eos, "bos_token": BEGIN, "eos_token": END}
    tokenizer = Tokenizer.from_directory(model_dir(tokenizer_config=adds))
    plain = tokenizer.encode("dog", add_special_tokens=False)
    begin, end = [tokenizer.token_id(BEGIN)] * bool(bos), [tokenizer.token_id(END)] * bool(eos)
    assert tokenizer.encode("dog") == [*begin, *plain, *end]


def test_add_bos_false_overrules_tokenizer_json(model_dir: Callable[..., Path]):
    begins = model_dir(tokenizer_config={"add_bos_token": True, "bos_token": BEGIN})
    Tokenizer.from_directory(begins)._inner.save(str(begins / "tokenizer.json"))
    unset = Tokenizer.from_directory(model_dir_with(begins, "{}"))
    forbids = Tokenizer.from_directory(model_dir_with(begins, '{"add_bos_token": false, "bos_token": "<|begin|>"}'))
    assert unset.encode("dog") == [unset.token_id(BEGIN), *forbids.encode("dog")]


def model_dir_with(directory: Path, tokenizer_config: str) -> Path:
    (directory / "tokenizer_config.json").write_text(tokenizer_config)
    return directory


def test_truncation_and_padding_stored_for_training_are_ignored(model_dir: Callable[..., Path]):
    directory = model_dir()
    inner = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    inner.enable_truncation(4)
    inner.enable_padding(length=8)
    inner.save(str(directory / "tokenizer.json"))
    tokenizer = Tokenizer.from_directory(directory)
    assert tokenizer.decode(tokenizer.encode("the quick brown fox jumps")) == "the quick brown fox jumps"


def test_vocab_size_is_the_largest_id_plus_one_and_special_ids_are_the_special_tokens(byte_level: Tokenizer):
    assert byte_level.vocab_size == len(byte_level._inner.get_vocab())
    assert {byte_level.token_text(id) for id in byte_level.special_ids} == {BEGIN, END}


def test_a_token_of_half_a_code_point_has_its_bytes_and_a_replacement_text(byte_level: Tokenizer):
    half = next(id for id in range(byte_level.vocab_size) if byte_level.token_bytes(id) == b"\xf0")
    assert byte_level.token_text(half) == "\ufffd"


def test_a_lone_surrogate_is_refused(byte_level: Tokenizer):
    with pytest.raises(InvalidRequest, match="surrogate"):
        byte_level.encode("a\ud800b")


def test_a_directory_without_tokenizer_json_is_refused_with_the_remedy(tmp_path: Path):
    with pytest.raises(BadWeights, match=r"tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)


def test_a_sentencepiece_only_directory_is_refused_with_the_conversion(tmp_path: Path):
    (tmp_path / "tokenizer.model").write_bytes(b"\n")
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.model.*AutoTokenizer.*save_pretrained"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_a_truncated_tokenizer_json_is_refused(model_dir: Callable[..., Path], share: float):
    path = model_dir() / "tokenizer.json"
    path.write_text(path.read_text()[: int(len(path.read_text()) * share)])
    with pytest.raises(BadWeights, match=r"tokenizer\.json"):
        Tokenizer.from_directory(path.parent)


def test_importing_the_room_loads_neither_torch_nor_gguf_nor_transformers():
    modules = "chat_template, gguf_tokenizer, tokenizer"
    heavy = "{'torch', 'gguf', 'transformers', 'numpy', 'huggingface_hub'} & set(sys.modules)"
    program = f"import sys; from ringkv.text import {modules}; print({heavy} or 'light')"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "light"
