"""Shapes compared with published parameter counts, and with the parameters of a module of transformers."""

import pytest

from ringkv.base.cache_spec import CacheSpec
from ringkv.base.errors import InvalidRequest, UnknownModel
from ringkv.models.config import ModelConfig, parse_config
from ringkv.plan.footprint import read_bytes, slot_bytes, token_bytes, weight_bytes, window_bytes
from ringkv.plan.shapes import Shape, configurations, known, names, plain_name
from tests.plan.models import LLAMA_8B, LLAMA_70B, QWEN, QWEN3, SMOLLM2


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (SMOLLM2, 134_515_008),
        (QWEN, 1_543_714_304),
        (LLAMA_8B, 8_030_261_248),
        (LLAMA_70B, 70_553_706_496),
        (QWEN3["qwen3-4b"], 4_022_468_096),
        (QWEN3["qwen3-8b"], 8_190_735_360),
        (QWEN3["qwen3-32b"], 32_762_123_264),
    ],
)
def test_parameters_are_counted_to_the_last(config: ModelConfig, published: int) -> None:
    assert Shape.of(config, "").parameters == published


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("smollm2", SMOLLM2),
        ("qwen2.5-coder-1.5b", QWEN),
        ("llama-3.1-8b", LLAMA_8B),
        ("llama-3.1-70b", LLAMA_70B),
        *QWEN3.items(),
    ],
)
def test_the_catalogue_equals_the_shape_of_the_configuration(name: str, config: ModelConfig) -> None:
    assert known(name) == Shape.of(config, name)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-3b", 3_085_938_688),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-14b", 14_770_033_664),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen2.5-72b", 72_706_203_648),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.2-3b", 3_212_749_824),
        ("mistral-7b", 7_248_023_552),
    ],
)
def test_models_of_the_catalogue_have_as_many_parameters_as_published(name: str, published: int) -> None:
    assert known(name).parameters == published


SMALL_INPUTS = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 97}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("Llama", {}),
        ("Llama", {"attention_bias": True, "mlp_bias": True}),
        ("Mistral", {"sliding_window": 8}),
        ("Qwen2", {}),
        ("Qwen3", {}),
        ("Qwen3", {"attention_bias": True}),
        ("Gemma3", {}),
        ("Gemma3n", {"num_kv_shared_layers": 1, "layer_types": ["sliding_attention"] * 3, **SMALL_INPUTS}),
        ("GptOss", {"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 8}),
    ],
)
def test_declared_parameters_equal_those_of_the_model_in_transformers(
    kind: str, extra: dict[str, bool], tied: bool
) -> None:
    """Qwen3 and Gemma 3 have query and key norms, Gemma 3 four norms a layer; biases differ too."""
    transformers = pytest.importorskip("transformers")
    settings = {
        "vocab_size": 97,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "pad_token_id": 0,
        "tie_word_embeddings": tied,
        **extra,
    }
    model_class = getattr(transformers, f"{kind}ForCausalLM")
    model = model_class(model_class.config_class(**settings))
    ours = parse_config({"architectures": [model_class.__name__], **settings, "max_position_embeddings": 4096})
    assert Shape.of(ours, "").parameters == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("r1-distill-qwen-7b", 7_615_616_512),
        ("phi-4-mini", 3_836_021_760),
        ("smollm3-3b", 3_075_098_624),
        ("gemma-3-4b", 3_880_263_168),
        ("mixtral-8x7b", 46_702_792_704),
        ("deepseek-v2-lite", 15_706_484_224),
    ],
)
def test_the_catalogue_has_the_published_numbers_of_parameters(name: str, published: int) -> None:
    assert known(name).parameters == published


@pytest.mark.parametrize(
    ("name", "worked"),
    [
        ("qwen3-30b-a3b", 2 * 48 * 4 * 128 * 2),
        ("qwen3-235b-a22b", 2 * 94 * 4 * 128 * 2),
        ("gemma-3-27b", 2 * 62 * 16 * 128 * 2),
        ("mixtral-8x7b", 2 * 32 * 8 * 128 * 2),
        ("gpt-oss-20b", 2 * 24 * 8 * 64 * 2),
        ("glm-4.5-air", 2 * 46 * 8 * 128 * 2),
        ("deepseek-r1", 61 * (512 + 64) * 2),
        ("gemma-3n-e2b", 2 * 20 * 2 * 256 * 2),
        ("gemma-3n-e4b", 2 * 20 * 2 * 256 * 2),
        ("gemma-4-e2b", 2 * (3 * 512 + 12 * 256) * 2),
        ("gemma-4-e4b", 2 * (4 * 2 * 512 + 20 * 2 * 256) * 2),
        ("gemma-4-26b-a4b", 2 * (5 * 2 * 512 + 25 * 8 * 256) * 2),
        ("gemma-4-31b", 2 * (10 * 4 * 512 + 50 * 16 * 256) * 2),
    ],
)
def test_bytes_per_token_are_those_worked_by_hand(name: str, worked: int) -> None:
    """Keys and values, layers, key-value heads, elements, bytes; of a latent one plane."""
    assert token_bytes(known(name), "bfloat16") == worked


def test_a_hybrids_window_layers_take_their_window_whatever_the_budget() -> None:
    """Gemma 3 27B: 10 of 62 layers attend to all tokens, 52 to 1,024."""
    shape, layer = known("gemma-3-27b"), 2 * 16 * 128 * 2
    assert window_bytes(shape, "bfloat16") == 52 * 1024 * layer
    assert slot_bytes(shape, 32768, "bfloat16") == (52 * 1024 + 10 * 32768) * layer


def test_a_hybrid_whose_trailing_layers_share_has_caches_for_the_layers_before_them() -> None:
    """Gemma 4 E2B: of its first 15 layers 3 attend to all tokens, 12 to 512; the last 20 share two of these caches."""
    shape = known("gemma-4-e2b")
    assert window_bytes(shape, "bfloat16") == 12 * 512 * 2 * 256 * 2
    assert slot_bytes(shape, 32768, "bfloat16") == (12 * 512 * 256 + 3 * 32768 * 512) * 2 * 2


@pytest.mark.parametrize(
    ("name", "parameters", "active"),
    [("gemma-4-e2b", 4.6, 2.3), ("gemma-4-26b-a4b", 25.2, 3.8), ("gemma-4-31b", 30.7, 30.7)],
)
def test_gemma4_has_the_billions_of_parameters_of_its_model_card(name: str, parameters: float, active: float) -> None:
    """E2B has 5.1 with encoders for images (0.15) and sounds (0.3). Each token reads one row of its table of inputs."""
    shape = known(name)
    assert (round(shape.parameters / 1e9, 1), round(shape.active / 1e9, 1)) == (parameters, active)


def test_tables_that_are_looked_up_are_stored_in_8_bits_but_not_read() -> None:
    shape = known("gemma-4-e2b")
    table, layers = 262144 * 35 * 256, shape.parameters - 262144 * (35 * 256 + 1536)
    assert shape.looked_up == table
    assert weight_bytes(shape, "int4") == (layers * 5 + (table + 262144 * 1536) * 8 + 7) // 8
    assert read_bytes(shape, "int4") == (layers * 5 + 262144 * 1536 * 8 + 7) // 8


def test_deepseek_r1_has_the_parameters_of_its_published_layers() -> None:
    """Written out from DeepSeek-V3's report (arXiv 2412.19437), section 4.2: 671 billion, 37 billion a token."""
    hidden, layers, dense_layers, heads = 7168, 61, 3, 128
    queries = hidden * 1536 + 1536 + 1536 * heads * (128 + 64)
    keys = hidden * (512 + 64) + 512 + 512 * heads * (128 + 128)
    attention = queries + keys + heads * 128 * hidden
    expert = 3 * hidden * 2048
    router = 256 * hidden + 256
    embedding = 129280 * hidden

    def total(routed: int, embeddings: int) -> int:
        dense = dense_layers * 3 * hidden * 18432
        sparse = (layers - dense_layers) * ((routed + 1) * expert + router)
        return layers * (attention + 2 * hidden) + dense + sparse + embeddings * embedding + hidden

    assert known("deepseek-r1").parameters == total(routed=256, embeddings=2)
    assert known("deepseek-r1").active == total(routed=8, embeddings=1)


@pytest.mark.parametrize(
    ("name", "layers", "experts", "total", "active"),
    [("gpt-oss-20b", 24, 32, 20.91, 3.61), ("gpt-oss-120b", 36, 128, 116.83, 5.13)],
)
def test_gpt_oss_has_the_parameters_of_its_model_card(
    name: str, layers: int, experts: int, total: float, active: float
) -> None:
    """In billions, arXiv 2508.10925, table 1; written out, with biases and sink logits, from section 2."""
    hidden, heads, kv_heads, width, vocab = 2880, 64, 8, 64, 201_088
    queries, keys = heads * width, kv_heads * width
    attention = (hidden + 1) * (queries + 2 * keys) + (queries + 1) * hidden + heads
    expert = (hidden + 1) * 2 * hidden + (hidden + 1) * hidden
    layer = attention + experts * expert + experts * (hidden + 1) + 2 * hidden
    assert known(name).parameters == layers * layer + 2 * vocab * hidden + hidden
    assert round(known(name).parameters / 1e9, 2) == total
    assert round(known(name).active / 1e9, 2) == active


def test_heads_are_shared_out_and_then_repeated() -> None:
    heads = CacheSpec.grouped(kv_heads=8, head_dim=128)
    assert [heads.on_rank(ranks).bytes(1) for ranks in (1, 2, 8, 16)] == [2048, 1024, 256, 256]


def test_a_latent_is_the_same_on_every_rank() -> None:
    assert [CacheSpec.latent(rank=512, rope=64).on_rank(ranks).bytes(1) for ranks in (1, 8)] == [576, 576]


def test_the_largest_share_counts_and_ranks_that_would_repeat_some_heads_are_refused() -> None:
    spec = CacheSpec.grouped(kv_heads=3, head_dim=64)
    assert [spec.on_rank(ranks).bytes(1) for ranks in (2, 3, 6)] == [256, 128, 128]
    with pytest.raises(InvalidRequest, match=r"3 key-value heads .* 4 ranks"):
        spec.on_rank(4)


def test_names_are_found_in_any_case() -> None:
    assert known("Llama-3.1-8B") == known("llama-3.1-8b")


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("qwen3-8b", "qwen3-8b"),
        ("Qwen3-8B-Q4_K_M.gguf", "qwen3-8b"),
        ("google_gemma-3-27b-it-qat-Q4_0.gguf", "gemma-3-27b"),
        ("openai_gpt-oss-20b-MXFP4.gguf", "gpt-oss-20b"),
        ("DeepSeek-R1-UD-IQ1_S-00001-of-00003.gguf", "deepseek-r1"),
        ("GLM-4.5-Air-Q4_K_M-00001-of-00002.gguf", "glm-4.5-air"),
        ("models/Qwen3-8B-BF16-00001-of-00002.gguf", "qwen3-8b"),
        ("unsloth/Qwen3-4B-GGUF", "qwen3-4b"),
        ("Qwen3-30B-A3B-UD-Q4_K_XL.gguf", "qwen3-30b-a3b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "llama-3.1-8b"),
        ("Meta-Llama-3.1-70B-Instruct.i1-IQ3_XS.gguf", "llama-3.1-70b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-r1"),
        ("DeepSeek-V3-0324-UD-Q2_K_XL-00001-of-00006.gguf", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "r1-distill-llama-8b"),
        ("DeepSeek-R1-Distill-Qwen-7B-Q4_K_M.gguf", "r1-distill-qwen-7b"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2"),
    ],
)
def test_hub_ids_and_names_of_gguf_files_are_those_of_the_catalogue(name: str, entry: str) -> None:
    assert known(name) == known(entry)
    assert known(name).name == entry


def test_no_two_models_have_a_name_in_common() -> None:
    called = [{plain_name(one) for one in (name, *fields["hub"])} for name, fields in configurations().items()]
    assert len(set.union(*called)) == sum(map(len, called))


@pytest.mark.parametrize("other", ["Qwen/Qwen3-8B-FP8", "Qwen3-80B-Q4_K_M.gguf", "Qwen/Qwen3-4B-Instruct-2507", ""])
def test_a_model_of_other_sizes_is_not_taken_for_one_of_the_catalogue(other: str) -> None:
    with pytest.raises(UnknownModel, match="no model"):
        known(other)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "Qwen/Qwen3.5-27B",
            r"; qwen3\.5 is not supported, or its sizes are not known; give .* qwen3 \(8\), llama-3\.1",
        ),
        ("gpt-5", r"; gpt-5 is not supported, or its sizes are not known; give .* families: smollm2, .*, deepseek-r1$"),
        ("qwen3-9b", r"; of qwen3 there are qwen3-0\.6b, .*, qwen3-235b-a22b; of others give a directory with config"),
        (
            "lama-3.1-8b",
            r"; did you mean llama-3\.1-8b\? Otherwise give a directory with config\.json, or a GGUF file$",
        ),
        ("deepseekr1", r"; did you mean deepseek-r1\?"),
    ],
)
def test_an_unknown_name_is_refused_with_the_model_meant_the_sizes_or_the_families(name: str, message: str) -> None:
    with pytest.raises(UnknownModel, match=f"^no model is known as {name!r}{message}"):
        known(name)


def test_names_are_those_of_the_catalogue() -> None:
    assert set(names()) >= {"smollm2", "llama-3.1-8b", "llama-3.1-70b", "deepseek-r1"}
