"""Memory arithmetic, and open choices to an `EngineConfig`.

Others import any module of it.
"""
