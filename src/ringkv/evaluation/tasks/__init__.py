"""Tasks: prompts with expected answers.

Others import `catalogue`, `own` and `source`.
"""
