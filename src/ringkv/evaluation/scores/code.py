"""Scores of programs: 1 if the model's program passes the problem's tests, otherwise 0.

HumanEval: arXiv 2107.03374. Tests run in a sandbox.
"""

import re

from ringkv.evaluation.sandbox import passes

BLOCK = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)
USUAL = (
    "from typing import *\nfrom collections import *\nfrom itertools import *\nfrom functools import *\n"
    "from heapq import *\nfrom bisect import *\nfrom math import *\nfrom builtins import pow\n"
    "import collections, itertools, functools, heapq, bisect, math, re, string, random\n"
)


def code_of(text: str) -> str:
    """Return the first block of code, or the whole text if it has none."""
    found = BLOCK.search(text)
    return found[1] if found else text


def solves(text: str, given: str, test: str) -> float:
    """Score an answer. given: code to prepend, unless the answer repeats it. test: code that raises on an error."""
    code = code_of(text)
    whole = code if _name(given) in code else given + code
    return float(passes(f"{USUAL}\n{whole}\n\n{test}\n"))


def _name(given: str) -> str:
    """Return the first function or class that is defined, with its keyword."""
    found = re.search(r"^(class|def) \w+", given, re.MULTILINE)
    return found[0] if found else given
