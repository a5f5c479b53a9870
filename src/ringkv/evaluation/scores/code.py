"""Scores of programs: whether what the model wrote passes the problem's tests, 0 or 1.

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
    """The first block of code; the whole text where there is none."""
    found = BLOCK.search(text)
    return found[1] if found else text


def solves(text: str, given: str, test: str) -> float:
    """`given`: what stands before the answer, if that does not repeat it; `test`: code that fails if it is wrong."""
    code = code_of(text)
    whole = code if _name(given) in code else given + code
    return float(passes(f"{USUAL}\n{whole}\n\n{test}\n"))


def _name(given: str) -> str:
    """The first function or class that is defined, with its keyword."""
    found = re.search(r"^(class|def) \w+", given, re.MULTILINE)
    return found[0] if found else given
