"""Tasks: prompts with expected answers.

Others import `catalogue`, `kinds` and `source`.
"""
