"""GGUF files: their header, what their fields and tensors are called here, and their conversion.

Others import `byte_groups`, `config`, `convert`, `file`, `groups`, `header` and `split`.
"""
