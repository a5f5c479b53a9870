"""GGUF files: their header, what their fields and tensors are called here, and their conversion.

Others import `config`, `convert`, `file`, `groups`, `header` and `split`.
"""
