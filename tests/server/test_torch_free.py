import subprocess
import sys


def test_the_server_never_loads_torch() -> None:
    code = "import sys, ringkv.server.main; print({'torch', 'numpy', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
