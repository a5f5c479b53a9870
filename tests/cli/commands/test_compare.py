import json
from pathlib import Path
from typing import Any

import pytest

from ringkv.base.sampling import SamplingParams
from ringkv.llm.llm import LLM
from tests import chat_model
from tests.cli.conftest import Cli, CliResult
from tests.engine.tiny import SIZES

SMALL = {"graphs": "off", "dtype": "float32", "threads": 1}
FLAGS = [text for name, value in SMALL.items() for text in (f"--{name}", str(value))]
ENTRY = 2 * SIZES["num_hidden_layers"] * SIZES["num_key_value_heads"] * SIZES["head_dim"] * 4
DOCUMENT = "".join(f"{number} is written as {number:b}. " for number in range(60))
QUESTION = "What is 7?"
PROMPT = f"<|im_start|>user:{DOCUMENT}\n\n{QUESTION}<|im_end|><|im_start|>"
TOKENS = 8


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model.save(tmp_path_factory.mktemp("model"), max_position_embeddings=2048)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "numbers.txt").write_text(DOCUMENT)
    return tmp_path / "numbers.txt"


@pytest.fixture
def ask(cli: Cli, long_model: Path, file: Path) -> Any:
    """`ringkv compare` on the tiny model."""

    def call(*arguments: object) -> CliResult:
        return cli("compare", file, QUESTION, "--model", long_model, *FLAGS, "--max-tokens", TOKENS, *arguments)

    return call


def test_each_caches_answer_is_that_of_an_engine_with_its_budget_alone(ask: Any, long_model: Path) -> None:
    found = json.loads(ask("--policies", "full,streaming,snapstream,arkvale", "--budgets", "64,4x", "--json").out)
    tokens = chat_tokens(long_model)
    prompt = len(tokens)
    caches = {cache["cache"]: cache for cache in found["caches"]}
    assert found["prompt_tokens"] == prompt
    quarter, others = prompt // 4, ("streaming", "snapstream", "arkvale")
    budgets = {f"{policy} {name}": (policy, size) for policy in others for name, size in (("64", 64), ("4x", quarter))}
    assert set(caches) == {"full", *budgets}
    for label, (policy, budget) in {"full": ("full", None), **budgets}.items():
        llm = LLM(long_model, **SMALL, slots=1, kv_policy=policy, kv_budget=budget)
        alone = llm.generate([tokens], SamplingParams(max_tokens=TOKENS))[0]
        live = prompt + TOKENS - 1 if policy in ("full", "arkvale") else budget
        assert caches[label]["text"] == " ".join(alone.text.split())
        assert caches[label]["kept"] == alone.usage.kv.kept
        assert (caches[label]["entries"], caches[label]["bytes"]) == (live, live * ENTRY)


def chat_tokens(folder: Path) -> list[int]:
    from ringkv.text.tokenizer import Tokenizer

    return Tokenizer.from_directory(folder).encode(PROMPT)


def test_the_table_has_a_row_for_each_cache_and_the_document_is_prefilled_once(ask: Any, long_model: Path) -> None:
    result = ask("--budgets", "2x,4x")
    prompt = len(chat_tokens(long_model))
    assert result.out.startswith(f"{QUESTION} ({prompt:,} prompt tokens, {long_model})")
    rows = [line.split() for line in result.out.splitlines() if line.startswith(("full ", "snapstream "))]
    assert [row[:3] for row in rows] == [
        ["full", f"{prompt:,}", f"{(prompt + TOKENS - 1) * ENTRY / 1e6:.3g}"],
        ["snapstream", "2x", f"{prompt // 2:,}"],
        ["snapstream", "4x", f"{prompt // 4:,}"],
    ]
    assert "prefilling the document" in result.err
    assert "answering with snapstream 4x" in result.err


def test_later_caches_find_the_prompt_prefilled(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    usages, result_of = [], LLM.stream_chat

    def watched(*arguments: Any, **options: Any) -> Any:
        for piece in result_of(*arguments, **options):
            usages.extend([piece.result.usage] if piece.result else [])
            yield piece

    monkeypatch.setattr(LLM, "stream_chat", watched)
    assert ask().status == 0
    assert [usage.cached_tokens for usage in usages] == [0, *[usages[0].prompt_tokens] * 4]


def test_a_base_model_completes_the_document_and_the_question(cli: Cli, long_model: Path, file: Path) -> None:
    config = long_model / "tokenizer_config.json"
    before = config.read_text()
    config.write_text(json.dumps({**json.loads(before), "chat_template": None}))
    try:
        result = cli("compare", file, QUESTION, "--model", long_model, *FLAGS, "--budgets", "4x", "--json")
    finally:
        config.write_text(before)
    assert json.loads(result.out)["prompt_tokens"] == len(f"{DOCUMENT}\n\n{QUESTION}")


def test_a_share_of_a_short_prompt_is_at_least_what_the_policy_needs(
    cli: Cli, long_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "short.txt").write_text("abc")
    found = json.loads(cli("compare", tmp_path / "short.txt", "Why?", "--model", long_model, *FLAGS, "--json").out)
    sinks_and_a_recent_token = 5
    assert found["prompt_tokens"] // 16 < sinks_and_a_recent_token
    assert found["caches"][-1]["kept"] == sinks_and_a_recent_token


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policies", "magic"), "--policies is 'magic'; it must be one of full, streaming, snapkv, snapstream"),
        (("--policies", "scissorhands"), "--policies is 'scissorhands'; it must be one of full, streaming"),
        (("--budgets", "2y"), "budget '2y' is neither a share of the prompt, such as 4x, nor a number of entries"),
        (("--budgets", "0.5x"), "budgets is '0.5x'"),
        (("--budgets", "4"), "--kv-budget 4 is less than 4 sinks and 1 recent; raise it to 5"),
        (("--max-tokens", "0"), "--max-tokens is 0; it must be at least 1"),
        (("--kv-pooling", "sum"), "--kv-pooling is 'sum'"),
    ],
)
def test_an_invalid_option_is_refused_in_one_line(ask: Any, arguments: tuple[str, ...], message: str) -> None:
    result = ask(*arguments)
    assert (result.status, result.out) == (2, "")
    assert result.last_line.startswith(f"ringkv: {message}")


def test_a_file_that_is_too_long_is_refused_with_its_length_and_the_models(
    cli: Cli, long_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "long.txt").write_text("x" * 3000)
    tokens = 3000 + len("\n\nWhy?") + len("user:") + 3  # and the template's marks
    result = cli("compare", tmp_path / "long.txt", "Why?", "--model", long_model, *FLAGS)
    assert result.status == 2
    assert f"{tokens:,} tokens and the model's context is 2,048, output included; shorten it" in result.last_line


@pytest.mark.parametrize(
    ("file_name", "question", "message"),
    [("nowhere.txt", "Why?", "nowhere.txt cannot be read"), ("numbers.txt", " ", "the question is empty; write it")],
)
def test_a_missing_file_or_question_is_refused(
    cli: Cli, file: Path, file_name: str, question: str, message: str
) -> None:
    result = cli("compare", file.parent / file_name, question)
    assert result.status == 2
    assert message in result.last_line
