"""speculation: what drafts give by model, text and sampling, and what a step of several tokens costs."""

from collections.abc import Sequence

from bench.report.machine import ALL_MACHINES, MODELS, machine_table
from bench.results import ResultRow, figures, newest


def speculation(rows: Sequence[ResultRow]) -> str:
    """Return a row for each text and sampling, of the newest run of each model and machine."""
    sampled = [each for each in figures(rows, "speculation") if "sampling" in each and "drafter" not in each]
    lines = [
        (
            MODELS[figure["model"]],
            figure["text"],
            figure["sampling"],
            f"{figure['per_pass']:.2f}",
            f"{figure['speedup']:.2f}x",
            ALL_MACHINES[figure["machine"]],
        )
        for figure in newest(sampled, "machine", "model")
    ]
    return machine_table(("model", "text", "sampling", "tokens per pass", "throughput", "machine"), lines)


def draft_models(rows: Sequence[ResultRow]) -> str:
    """Return a row for each text and sampling, of the newest run of each model, weights, draft model and machine."""
    lines = [
        (
            f"{MODELS[figure['model']]}, {figure['weights']}",
            figure["text"],
            figure["sampling"],
            f"{figure['accepted']:.0%}",
            f"{figure['per_pass']:.2f}",
            f"{figure['speedup']:.2f}x",
            ALL_MACHINES[figure["machine"]],
        )
        for figure in newest(
            [each for each in figures(rows, "speculation") if "drafter" in each],
            *("machine", "model", "weights", "drafter"),
        )
    ]
    head = ("model", "text", "sampling", "drafts kept", "tokens per pass", "throughput", "machine")
    return machine_table(head, lines)
