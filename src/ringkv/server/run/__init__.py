"""From a body to tokens: schemas, prompts, grammars, requests, admission, and the outputs of the engine, counted.

Others import any module of it.
"""
