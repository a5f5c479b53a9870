"""machine: the names of machines and models in tables, and tables that name a machine once if all rows share it."""

from collections.abc import Sequence

from bench.results import table

COLUMN = "machine"
MACHINES = {"intel-amx_bf16": "Intel, AMX", "amd-avx512_bf16": "AMD, AVX-512", "intel-avx512_bf16": "Intel, AVX-512"}
ALL_MACHINES = {**MACHINES, "amd-plain": "AMD, AVX2"}  # those without products of bfloat16 too
MODELS = {"smollm2": "SmolLM2-135M", "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B"}


def machine_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table. If all rows have one machine, a sentence below the table names it, not a column."""
    place = head.index(COLUMN)
    names = {row[place] for row in rows}
    if len(names) != 1:
        return table(head, rows)
    return f"{table(_without(head, place), [_without(row, place) for row in rows])}\n\nMachine: {names.pop()}."


def _without(row: Sequence[str], place: int) -> Sequence[str]:
    return (*row[:place], *row[place + 1 :])
