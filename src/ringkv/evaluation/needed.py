"""The packages of the `eval` extra: without them an evaluation is refused before any work."""

from importlib.util import find_spec

from ringkv.base.errors import InvalidRequest

PACKAGES = {"matplotlib": "plots", "rapidfuzz": "edit similarity", "rouge_score": "ROUGE-L", "wonderwords": "words"}


def check() -> None:
    """Raises InvalidRequest with the command that installs what is missing."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        what = ", ".join(f"{name} ({PACKAGES[name]})" for name in missing)
        raise InvalidRequest(f"an evaluation needs {what}; install them with: pip install 'ringkv[eval]'")
