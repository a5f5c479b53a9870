import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringkv.base.sampling import SamplingParams
from ringkv.llm.llm import LLM
from ringkv.text.tokenizer import Tokenizer
from tests.cli.conftest import SMALL, Cli, CliResult, start
from tests.engine.tiny import SIZES


@pytest.fixture
def ask(cli: Cli, model_dir: Path) -> Any:
    """`ringkv generate` on the tiny model."""

    def call(*arguments: object) -> CliResult:
        return cli("generate", "--model", model_dir, *SMALL, *arguments)

    return call


@pytest.fixture(scope="module")
def llm(model_dir: Path) -> LLM:
    return LLM(model_dir, graphs="off", dtype="float32", threads=1, kv_budget=64, slots=1)


def chat_tokens(model_dir: Path, text: str) -> list[int]:
    """The template written out: one message of the user's, then the answer's beginning."""
    return Tokenizer.from_directory(model_dir).encode(f"<|im_start|>user:{text}<|im_end|><|im_start|>")


def test_the_answer_alone_is_on_stdout(ask: Any, llm: LLM, model_dir: Path) -> None:
    result = ask("Why?", "--max-tokens", "12")
    wanted = llm.generate([chat_tokens(model_dir, "Why?")], SamplingParams(max_tokens=12))[0]
    assert result.status == 0
    assert result.out == wanted.text + "\n"


def test_raw_completes_the_plain_text(ask: Any, llm: LLM) -> None:
    wanted = llm.generate("def f():", SamplingParams(max_tokens=12))
    assert ask("--raw", "--prompt", "def f():", "--max-tokens", "12").out == wanted.text + "\n"


def test_the_last_line_on_stderr_has_the_caches_counters(ask: Any) -> None:
    result = ask("--raw", "--prompt", "x" * 100, "--max-tokens", "40", "--ignore-eos")
    entry = 2 * SIZES["num_hidden_layers"] * SIZES["num_key_value_heads"] * SIZES["head_dim"] * 4
    evicted = 100 + 39 - 64
    # The ring has 16 entries, full when decoding starts; token 100 takes entry (100 - 4) % 16 = 0 of it.
    wraps = 3
    assert result.last_line.startswith(
        f"100 prompt tokens | kept 64, evicted {evicted}, {wraps} ring wraps | {64 * entry / 1000:.1f} kB KV cache | "
    )
    assert "decode" in result.last_line


def test_json_has_the_text_the_tokens_and_the_proof(ask: Any, llm: LLM) -> None:
    result = ask("--raw", "--prompt", "x" * 100, "--max-tokens", "9", "--json")
    found = json.loads(result.out)
    wanted = llm.generate("x" * 100, SamplingParams(max_tokens=9))
    assert (found["text"], tuple(found["token_ids"])) == (wanted.text, wanted.token_ids)
    assert found["usage"]["kv"]["kept"] == wanted.usage.kv.kept == 64
    assert found["timing"]["first_token_s"] > 0


def test_a_document_of_any_length_is_read_from_a_file(ask: Any, tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text("word " * 80, encoding="utf-8")
    found = json.loads(ask("Why?", "--prompt-file", tmp_path / "big.txt", "--max-tokens", "2", "--json").out)
    template = len("user:") + 3
    assert found["usage"]["prompt_tokens"] == 400 + len("\n\nWhy?") + template


def test_a_prompt_is_read_from_standard_input(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"0123456789")))
    found = json.loads(ask("--prompt", "-", "--raw", "--max-tokens", "2", "--json").out)
    assert found["usage"]["prompt_tokens"] == 10


def test_the_same_seed_samples_the_same_text(ask: Any) -> None:
    options = ("--raw", "--prompt", "abc", "--temperature", "1", "--max-tokens", "20", "--ignore-eos", "--seed")
    first, again, other = (ask(*options, seed).out for seed in (1, 1, 2))
    assert first == again != other


def test_a_system_message_goes_in_front(ask: Any, llm: LLM, model_dir: Path) -> None:
    result = ask("Why?", "--system", "Short.", "--max-tokens", "8")
    text = "<|im_start|>system:Short.<|im_end|><|im_start|>user:Why?<|im_end|><|im_start|>"
    wanted = llm.generate([llm.tokenizer.encode(text)], SamplingParams(max_tokens=8))[0]
    assert result.out == wanted.text + "\n"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "the prompt is empty; give a question"),
        (("--prompt", "  "), 2, "the prompt is empty"),
        (("Why?", "--prompt-file", "nowhere.txt"), 2, "nowhere.txt cannot be read"),
        (("Why?", "--prompt", "a", "--prompt-file", "b"), 2, "--prompt and --prompt-file both"),
        (("x" * 600,), 2, "the prompt has 608 tokens and the model's context is 512"),
        (("Why?", "--kv-budget", "4"), 2, "--kv-budget 4 is less than 4 sinks and 1 recent; raise it to 5"),
        (("Why?", "--kv-policy", "magic"), 2, "--kv-policy is 'magic'; it must be one of full, streaming, snapkv"),
        (
            ("Why?", "--kv-select", "keydiff", "--kv-kernel", "5"),
            2,
            "--kv-kernel is a parameter of --kv-select snapkv; --kv-select keydiff takes none",
        ),
        (("Why?", "--kv-compression", "4x"), 2, "--kv-budget 64 and --kv-compression 4x both set the budget"),
        (("Why?", "--graphs", "never"), 2, "--graphs is 'never'; it must be one of auto, compiled, background, off"),
        (("Why?", "--dtype", "float16"), 2, "--dtype float16 does not run on the CPU"),
        (("Why?", "--temperature", "-1"), 2, "--temperature is -1.0; it must be 0 or more"),
        (("Why?", "--max-tokens", "0"), 2, "--max-tokens is 0; it must be at least 1"),
        (("Why?", "--max-prompt", "9999"), 2, "--max-prompt is 9,999; it must be at most 512, the model's context"),
        (("Why?", "--raw", "--system", "Short."), 2, "--system needs a chat template"),
        (("Why?", "--slots", "0"), 2, "--slots is 0; it must be at least 1"),
        (("Why?", "--slots", "100000000"), 1, "100000000 slots of 64 entries"),
    ],
)
def test_an_invalid_request_is_refused_in_one_line(
    ask: Any, arguments: tuple[str, ...], status: int, message: str
) -> None:
    result = ask(*arguments)
    assert result.status == status
    assert result.out == ""
    assert result.last_line.startswith(f"ringkv: {message}")
    assert "Traceback" not in result.err


@pytest.mark.slow  # loads torch in a process
def test_ctrl_c_leaves_the_answer_on_a_line_of_its_own(model_dir: Path) -> None:
    options = ("--max-tokens", "400", "--ignore-eos", "--temperature", "1")
    program = start("generate", "--model", model_dir, *SMALL, *options, "Hi")
    assert program.stdout is not None
    begun = program.stdout.read(1)
    program.send_signal(signal.SIGINT)
    rest, err = program.communicate(timeout=60)
    assert program.returncode == 130
    assert (begun + rest).endswith("\n")
    assert err.splitlines()[-1] == "ringkv: interrupted"


def modules_after(*arguments: object) -> set[str]:
    """Return the modules that a new process has imported after `ringkv generate`."""
    code = "import sys; from ringkv.cli.application import run; run(sys.argv[1:]); print(); print(*sys.modules)"
    command = [sys.executable, "-c", code, "generate", *map(str, arguments)]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1].split())


def test_an_answer_loads_no_library_that_it_does_not_need(llm: LLM, model_dir: Path) -> None:
    assert llm.limits  # its kernels are built by now, so that the process only loads them
    loaded = modules_after("--model", model_dir, *SMALL, "--max-tokens", "2", "Why?")
    assert "torch" in loaded
    compilers = {"torch._dynamo", "torch._inductor", "sympy", "triton", "setuptools"}
    assert loaded & (compilers | {"fastapi", "uvicorn", "transformers", "huggingface_hub", "gguf"}) == set()


@pytest.mark.parametrize("option", [("--kv-policy", "magic"), ("--kv-budget", "4"), ("--dtype", "float16")])
def test_an_invalid_option_is_refused_before_torch_is_loaded(model_dir: Path, option: tuple[str, str]) -> None:
    assert {"torch", "numpy"} & modules_after("--model", model_dir, *SMALL, *option, "Why?") == set()


def test_an_unknown_model_is_refused_with_the_nearest(cli: Cli) -> None:
    result = cli("generate", "--model", "smolm2", "Why?")
    assert result.status == 2
    assert result.last_line.startswith("ringkv: no model 'smolm2'")
    assert "smollm2?" in result.last_line


def test_truncated_weights_are_refused(cli: Cli, model_dir: Path, tmp_path: Path) -> None:
    for file in model_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    result = cli("generate", "--model", tmp_path, *SMALL, "Why?")
    assert result.status == 1
    assert result.last_line.startswith("ringkv: ")
    assert "Traceback" not in result.err
