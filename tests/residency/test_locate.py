"""All kinds of model arguments, valid and invalid."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from ringkv.base.errors import PullFailed, UnknownModel, UnsupportedModel
from ringkv.models.config import load_config
from ringkv.residency import locate as room
from ringkv.residency.inventory import list_models
from ringkv.residency.locate import locate
from tests.residency.conftest import TOKENIZER
from tests.weights.tiny_gguf import tiny_model, write_tiny


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A model directory with only what `locate` reads."""
    folder = tmp_path / "hf"
    folder.mkdir()
    sizes = dict.fromkeys(
        ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings"), 8
    )
    config = {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 2, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def test_a_directory_is_taken_as_it_is(directory: Path) -> None:
    assert locate(str(directory)) == directory


def test_a_gguf_file_is_converted_once(tiny_gguf: Path, tmp_cache: Path) -> None:
    first = locate(str(tiny_gguf))
    assert load_config(first).vocab_size == 258
    assert first.parent == tmp_cache / "converted"
    assert first.name.startswith("tiny-model-")
    assert locate(str(tiny_gguf)) == first


def test_the_parts_of_a_gguf_are_converted_once_until_one_of_them_changes(tmp_path: Path, tmp_cache: Path) -> None:
    write_tiny(tmp_path / "tiny.gguf", tiny_model("Llama", vocab_size=258), metadata=TOKENIZER, per_part=8)
    first = locate(str(tmp_path / "tiny-00001-of-00003.gguf"))
    assert load_config(first).vocab_size == 258
    assert first.name.startswith("tiny-")
    assert "00001" not in first.name.rpartition("-")[0]
    assert locate(str(tmp_path / "tiny-00001-of-00003.gguf")) == first
    os.utime(tmp_path / "tiny-00003-of-00003.gguf", (1, 1))
    assert locate(str(tmp_path / "tiny-00001-of-00003.gguf")) != first


def test_a_catalogue_name_is_pulled_and_converted_once(
    tiny_gguf: Path, tmp_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled = []
    monkeypatch.setattr(room, "pull", lambda name, _: pulled.append(name) or tiny_gguf)
    first = locate("smollm2")
    assert load_config(first).vocab_size == 258
    assert locate("smollm2") == first
    assert pulled == ["smollm2"]


def test_a_catalogue_model_shows_what_is_on_disk(
    tiny_gguf: Path, tmp_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {model.name: model for model in list_models()}
    assert not any(model.pulled or model.directory or model.disk_bytes for model in before.values())
    assert (before["smollm2"].context, before["smollm2"].licence) == (8192, "Apache-2.0")
    monkeypatch.setattr(room, "pull", lambda *_: tiny_gguf)
    place = locate("qwen2.5-coder-1.5b")
    after = {model.name: model for model in list_models()}
    assert after["smollm2"] == before["smollm2"]
    assert after["qwen2.5-coder-1.5b"].directory == place
    assert after["qwen2.5-coder-1.5b"].disk_bytes == sum(path.stat().st_size for path in place.iterdir())


@pytest.mark.parametrize("wrong", ["smolm2", "SmolLM2", "smollm-2"])
def test_a_misspelt_name_is_refused_with_the_nearest_and_what_is_accepted(wrong: str) -> None:
    with pytest.raises(UnknownModel, match="smollm2") as refused:
        locate(wrong)
    for accepted in ("smollm2", "qwen2.5-coder-1.5b", "directory", ".gguf", "hub id"):
        assert accepted in str(refused.value)


@pytest.mark.parametrize(
    ("far", "message"), [("llama3", "no model 'llama3'; give a"), ("/no/x.gguf", "no file '/no/x.gguf'; give a")]
)
def test_a_name_that_is_like_none_gets_no_guess_and_a_missing_file_is_called_one(far: str, message: str) -> None:
    with pytest.raises(UnknownModel) as refused:
        locate(far)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("absent", ["./nowhere", "/no/such/dir/model", "zzz", "", "a/b/c", "models/absent.gguf"])
def test_a_missing_path_is_not_a_model(absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownModel):
        locate(absent)


def test_a_directory_without_a_configuration_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel, match=r"config\.json"):
        locate(str(tmp_path))


def test_a_directory_with_a_gguf_is_refused_with_its_path(tiny_gguf: Path) -> None:
    with pytest.raises(UnknownModel, match=r"tiny model\.gguf"):
        locate(str(tiny_gguf.parent))


def test_another_kind_of_file_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(UnknownModel, match=r"not a \.gguf"):
        locate(str(tmp_path / "model.bin"))


class Hub:
    """Replaces `snapshot_download`; copies the requested files of `source`."""

    def __init__(self, source: Path, into: Path) -> None:
        self.source, self.into = source, into
        self.requests: list[list[str]] = []

    def __call__(self, model: str, allow_patterns: list[str], **_: Any) -> str:
        self.requests.append(allow_patterns)
        self.into.mkdir(exist_ok=True)
        for pattern in allow_patterns:
            for path in self.source.glob(pattern):
                shutil.copy(path, self.into)
        return str(self.into)


@pytest.fixture
def hub(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(directory, tmp_path / "snapshot")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub)
    return hub


def test_a_hub_id_is_fetched_with_its_weights(hub: Hub) -> None:
    place = locate("organisation/name")
    assert {path.name for path in place.iterdir()} == {"config.json", "model.safetensors"}


def test_a_hub_model_that_is_not_implemented_is_refused_before_its_weights_are_fetched(hub: Hub) -> None:
    (hub.source / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')
    with pytest.raises(UnsupportedModel, match="MambaForCausalLM"):
        locate("organisation/name")
    assert not any("safetensors" in pattern for patterns in hub.requests for pattern in patterns)


def test_a_hub_model_without_safetensors_is_refused(hub: Hub) -> None:
    (hub.source / "model.safetensors").unlink()
    with pytest.raises(UnknownModel, match="safetensors"):
        locate("organisation/name")


def test_an_unreachable_hub_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(PullFailed, match="organisation/name"):
        locate("organisation/name")


def test_without_a_network_a_model_in_the_hubs_cache_is_used(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    cached = tmp_path / "hub" / "models--Qwen--Qwen3-8B"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc")
    shutil.copytree(directory, cached / "snapshots" / "abc")
    assert locate("Qwen/Qwen3-8B") == cached / "snapshots" / "abc"


@pytest.mark.parametrize("name", ["qwen3-8b", "Qwen3-8B", "Qwen3-8B-Q4_K_M.gguf"])
def test_a_name_without_a_download_is_refused_with_its_hub_id(name: str) -> None:
    with pytest.raises(UnknownModel, match=f"{name}.* Qwen/Qwen3-8B"):
        locate(name)


def test_without_huggingface_hub_the_remedy_is_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(PullFailed, match="pip install huggingface_hub"):
        locate("organisation/name")
