"""needed: checks that the packages of the `eval` extra are installed before an evaluation needs them."""

from collections.abc import Iterable
from importlib.util import find_spec

from ringkv.base.errors import InvalidRequest

WORDS = "wonderwords"
PACKAGES = ("rapidfuzz", "rouge-score", WORDS)


def check(packages: Iterable[str] = PACKAGES) -> None:
    """Raises InvalidRequest with the command that installs what is missing."""
    if missing := [package for package in packages if find_spec(package.replace("-", "_")) is None]:
        what = f"an evaluation needs packages that are not installed: {', '.join(missing)}"
        raise InvalidRequest(f"{what}; install the extra that has them: pip install 'ringkv[eval]'")
