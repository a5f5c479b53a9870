"""Tasks: prompts with expected answers.

Others import `catalogue` and `source`.
"""
