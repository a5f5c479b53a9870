"""`LLM`: an engine in the calling process.

Others import `llm`, `open_answers`, `result` and `show_progress`.
"""
