"""Put kept tables into README.md, between its markers: of one kind of processor, and of one study of accuracy.

python -m bench.readme
"""

from pathlib import Path

from bench.page.fastest import brief as fastest
from bench.page.kept import kept
from bench.page.studies import FOLDER, brief, done, progress
from bench.report import FIRST, RESULTS

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
SPEED = "Eight requests with long prompts at once (`python -m bench.concurrent`):"
BESIDE = (
    "Beside other engines (`python -m bench.peers`), each model's lightest and heaviest workload. `ringkv` keeps a\n"
    "quarter of each prompt, and OpenVINO's eviction as many tokens:"
)
STUDY = "ruler-qwen"
ACCURACY = (
    "RULER, 13 tasks of 4k tokens on Qwen2.5-Coder-1.5B, mean score (`python -m bench.accuracy ruler-qwen`).\n"
    "`held` is what part of the prompt stayed; `window=64` was our default until it became 32, which does no worse\n"
    "([docs/accuracy.md](docs/accuracy.md)), and with `kernel=5 pooling=avg` it is what NVIDIA's kvpress usually takes:"
)


def main() -> None:
    README.write_text(with_tables(README.read_text()))


def with_tables(readme: str) -> str:
    """The same text with the tables of today between the markers."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{SPEED}\n\n{_speed()}\n\n{BESIDE}\n\n{_beside()}\n\n{_accuracy()}\n\n{END}{after}"


def _speed() -> str:
    return (RESULTS / FIRST / "concurrent.md").read_text().strip()


def _beside() -> str:
    return fastest(kept(RESULTS / FIRST))


def _accuracy() -> str:
    folder = FOLDER / STUDY
    return f"{ACCURACY}\n\n{brief(folder)}\n\n{progress(STUDY, folder)}" if done(folder) else ""


if __name__ == "__main__":
    main()
