"""lm_eval: lm-eval's log-likelihoods, compared with an offline computation, and generation as text and chat."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.clients.checks import Check
from bench.clients.surroundings import Server, client
from ringkv.models.config import load_config
from ringkv.plan.memory import available_bytes
from ringkv.plan.options import Options
from ringkv.plan.resolve import resolve
from ringkv.text.tokenizer import Tokenizer

WINDOWS, CONTEXT, CONTINUATION = 200, 96, 64  # words of WikiText-2 in each window
LONGEST = 2048  # tokens of a window
TOLERANCE = 1e-3  # nats per token
COMMON = {"dataset_path": "json", "test_split": "test"}
LIKELIHOOD = {
    "task": "windows", "output_type": "loglikelihood", "doc_to_text": "{{context}}",
    "doc_to_target": "{{continuation}}", "target_delimiter": "", "metric_list": [{"metric": "acc"}],
}  # fmt: skip
WRITING = {
    "task": "sums", "output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 16, "temperature": 0},
    "metric_list": [{"metric": "exact_match"}],
}  # fmt: skip


def checks(server: Server, text: Path) -> Iterator[Check]:
    """Run the checks. text: WikiText-2's test split."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        windows = list(_windows(text.read_text(encoding="utf-8")))
        _task(folder, LIKELIHOOD, windows)
        _task(folder, WRITING, [{"question": f"{n} + {n} =", "answer": f" {2 * n}"} for n in range(1, 9)])
        yield _compared(server, folder, windows)
        yield _written(server, folder, "local-completions", "completions", ())
        yield _written(server, folder, "local-chat-completions", "chat/completions", ("--apply_chat_template",))


def _windows(text: str) -> Iterator[dict[str, str]]:
    words = text.split(" ")
    for first in range(0, WINDOWS * (CONTEXT + CONTINUATION), CONTEXT + CONTINUATION):
        middle = first + CONTEXT
        yield {
            "context": " ".join(words[first:middle]).strip(),
            "continuation": " " + " ".join(words[middle : middle + CONTINUATION]).strip(),
        }


def _task(folder: Path, task: Mapping[str, Any], rows: Sequence[Mapping[str, str]]) -> None:
    """Write a task and its data into the folder, so that lm-eval needs no network. JSON is valid YAML."""
    data = folder / f"{task['task']}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    document = {**COMMON, **task, "dataset_kwargs": {"data_files": {"test": str(data)}}}
    (folder / f"{task['task']}.yaml").write_text(json.dumps(document))


def _run(server: Server, folder: Path, model: str, path: str, task: str, more: Sequence[str]) -> tuple[str, list[Any]]:
    """Run one task. Returns the error, empty if there was none, and the samples."""
    to = folder / f"{model}-{task}"
    settings = f"model={server.model},base_url={server.url}/v1/{path},num_concurrent=4,max_length=8192"
    settings += f",tokenizer={server.tokenizer},tokenizer_backend=huggingface"
    command = ["lm_eval", "run", "--model", model, "--model_args", settings, "--tasks", task]
    command += ["--include_path", str(folder)]
    ran = client([*command, "--output_path", str(to), "--log_samples", *more], seconds=500)
    samples = next(iter(to.rglob("samples_*.jsonl")), None)
    if ran.code or samples is None:
        return ran.last, []
    return "", [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]


def _compared(server: Server, folder: Path, windows: Sequence[Mapping[str, str]]) -> Check:
    what = f"log-likelihood of {len(windows)} WikiText-2 windows, against our offline computation"
    why, samples = _run(server, folder, "local-completions", "completions", "windows", ())
    if why:
        return Check("lm-eval", what, False, why)
    theirs = {sample["doc"]["context"]: float(sample["filtered_resps"][0][0]) for sample in samples}
    worst = max(
        abs(theirs[window["context"]] - ours) / count
        for window, (ours, count) in zip(windows, offline(server.tokenizer, windows), strict=True)
    )
    return Check("lm-eval", what, worst <= TOLERANCE, f"largest difference {worst:.1e} nats per token")


def offline(folder: Path, windows: Sequence[Mapping[str, str]]) -> Iterator[tuple[float, int]]:
    """Yield each continuation's log-likelihood and token count, from all logits of an engine in this process."""
    import torch

    from ringkv.engine.build import build

    tokenizer, config = Tokenizer.from_directory(folder), load_config(folder)
    engine = build(resolve(folder, config, Options(slots=1, prompt_tokens=LONGEST), available_bytes()))
    for window in windows:
        context = len(tokenizer.encode(window["context"]))
        tokens = tokenizer.encode(window["context"] + window["continuation"])
        logits = torch.cat([rows.clone() for rows in engine.prompt_logits(tokens)])[context - 1 : -1]
        targets = torch.tensor(tokens[context:])
        yield float(logits.double().log_softmax(-1).gather(1, targets[:, None]).sum()), len(targets)


def _written(server: Server, folder: Path, model: str, path: str, more: Sequence[str]) -> Check:
    why, samples = _run(server, folder, model, path, "sums", more)
    answers = [sample["filtered_resps"][0] for sample in samples]
    return Check("lm-eval", f"generation by {model}", bool(answers), why or f"{len(answers)} answers: {answers[0]!r}")
