"""The families: a function for each reads its config.json and returns a `ModelConfig`.

Others import `registry`.
"""
