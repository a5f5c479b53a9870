"""Put the kept tables of results/ into README.md, between its markers.

python -m bench.readme
"""

from pathlib import Path

from bench.report import RESULTS

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
SHOWN = ("concurrent", "graphs", "waiting")


def main() -> None:
    README.write_text(with_tables(README.read_text()))


def with_tables(readme: str) -> str:
    """The same text with the tables of today between the markers."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    tables = "\n\n".join((RESULTS / f"{name}.md").read_text().strip() for name in SHOWN)
    return f"{before}{BEGIN}\n{tables}\n{END}{after}"


if __name__ == "__main__":
    main()
