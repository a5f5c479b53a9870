"""Which operators count as native: the key of compiled graphs holds them."""

import subprocess
import sys

CODE = """
import pkgutil
from importlib import import_module
import ringkv.kernels
from ringkv.kernels.library import natives
for module in pkgutil.iter_modules(ringkv.kernels.__path__):
    if not module.ispkg:
        import_module(f"ringkv.kernels.{module.name}")
print(natives())
"""


def test_what_is_written_in_python_is_not_native() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
