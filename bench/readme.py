"""Put the kept tables of one kind of processor in results/ into README.md, between its markers.

python -m bench.readme
"""

from pathlib import Path

from bench.report import FIRST, RESULTS

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
KEPT = RESULTS / FIRST
SHOWN = {
    "concurrent": "Eight requests with long prompts at once (`python -m bench.concurrent`):",
    "graphs": "Ways to make a decode step's graphs (`python -m bench.graphs`):",
    "waiting": "How long OpenMP's threads spin at a barrier (`python -m bench.waiting`; we take 2,000, on AMD 10,000):",
}


def main() -> None:
    README.write_text(with_tables(README.read_text()))


def with_tables(readme: str) -> str:
    """The same text with the tables of today between the markers."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    tables = "\n\n".join(f"{title}\n\n{(KEPT / f'{name}.md').read_text().strip()}" for name, title in SHOWN.items())
    return f"{before}{BEGIN}\n{tables}\n\n{END}{after}"


if __name__ == "__main__":
    main()
