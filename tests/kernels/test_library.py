"""Which operators are native: the key of compiled graphs contains them."""

import subprocess
import sys

CODE = """
import pkgutil
from importlib import import_module
import ringkv.kernels
from ringkv.kernels.library import native_operators
for module in pkgutil.iter_modules(ringkv.kernels.__path__):
    if not module.ispkg:
        import_module(f"ringkv.kernels.{module.name}")
print(native_operators())
"""


def test_operators_in_python_are_not_native() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
