"""Install ringkv into .venv and show progress: `python3 scripts/install.py [EXTRA]`.

The script runs on Python 3.6 and later without packages, so that it can report a Python that is too old for ringkv. It
can be interrupted and run again: a stamp with a digest of its inputs is written last.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time

OLDEST = (3, 11)
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "Scripts" if os.name == "nt" else "bin", "python")
INPUTS = ("pyproject.toml", "constraints.txt")


def main(extra):
    refuse_old_python()
    stamp = stamp_of(extra)
    current = fingerprint()
    if current in (read(stamp), read(stamp_of("dev"))):  # dev includes what `make` needs of all extras
        return
    make_venv()
    what = "ringkv and its test dependencies" if extra else "ringkv"
    print(f"installing {what} into .venv (1-3 minutes the first time, mostly for torch)", flush=True)
    started = time.time()
    install(f".[{extra}]" if extra else ".")
    write(stamp, current)
    print(f"installed in {time.time() - started:.0f} s", flush=True)


def stamp_of(extra):
    return os.path.join(VENV, "installed-" + (extra or "ringkv"))


def refuse_old_python():
    if sys.version_info < OLDEST:
        sys.exit(
            "ringkv needs Python {}.{} or newer, but {} is {}; use a newer one: make {} PYTHON=python3.12".format(
                OLDEST[0], OLDEST[1], sys.executable, sys.version.split()[0], "test" if "dev" in sys.argv else "demo"
            )
        )


def fingerprint():
    """Return a digest of the inputs, this directory and the Python version."""
    digest = hashlib.sha256("\0".join([ROOT, sys.version]).encode())
    for name in INPUTS:
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def make_venv():
    """Make a virtual environment with pip; replace one that is incomplete or of another Python version."""
    if os.path.exists(PYTHON) and subprocess.call([PYTHON, "-c", CHECK.format(tuple(sys.version_info[:2]))]) == 0:
        return
    shutil.rmtree(VENV, ignore_errors=True)
    print(f"making a virtual environment in .venv with Python {sys.version.split()[0]}", flush=True)
    if subprocess.call([sys.executable, "-m", "venv", VENV], stdout=subprocess.DEVNULL) != 0:
        shutil.rmtree(VENV, ignore_errors=True)
        sys.exit(
            f"{sys.executable} could not make a virtual environment; install its venv module "
            "(Debian and Ubuntu: apt install python3-venv)"
        )


CHECK = "import pip, sys; sys.exit(sys.version_info[:2] != {})"


def install(target):
    """Run pip; print a line per package and write its output to .venv/install.log."""
    log = os.path.join(VENV, "install.log")
    # Python compiles the modules that it imports, which are a fifth of those that pip would compile here.
    command = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile"]
    command += ["-c", "constraints.txt", "-e", target]
    pip = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    with open(log, "w") as file:
        for line in pip.stdout:
            file.write(line)
            show(line.split())
    if pip.wait() != 0:
        sys.exit(f"{last_lines(log)}\npip failed; its output is in .venv/install.log")


def show(words):
    if words[:1] == ["Collecting"]:
        print("  " + re.split("[=<>!~;]", words[1])[0], flush=True)
    elif words[:1] == ["Processing"] and words[1].endswith(".whl"):
        print("  " + os.path.basename(words[1]).split("-")[0], flush=True)
    elif words[:2] == ["Installing", "collected"]:
        print(f"  unpacking {len(words) - 3} packages", flush=True)


def last_lines(path, count=15):
    return "\n".join(read(path).splitlines()[-count:])


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


if __name__ == "__main__":
    try:
        main(*(sys.argv[1:2] or [""]))
    except KeyboardInterrupt:
        sys.exit("\ninterrupted; run it again to resume")
