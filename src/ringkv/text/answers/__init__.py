"""What the text of an answer contains: reasoning, tool calls, content.

Others import any module of it.
"""
