"""needed: checks that the packages of the `eval` extra are installed before an evaluation begins."""

from importlib.util import find_spec

from ringkv.base.errors import InvalidRequest

PACKAGES = {name.replace("-", "_"): name for name in ("matplotlib", "rapidfuzz", "rouge-score", "wonderwords")}


def check() -> None:
    """Raises InvalidRequest with the command that installs what is missing."""
    if missing := [package for module, package in PACKAGES.items() if find_spec(module) is None]:
        what = f"an evaluation needs packages that are not installed: {', '.join(missing)}"
        raise InvalidRequest(f"{what}; install the extra that has them: pip install 'ringkv[eval]'")
