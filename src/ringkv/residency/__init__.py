"""From the name of a model to its directory: download, verify, convert, lock.

Others import `catalogue`, `inventory`, `locate`, `lock` and `pull`.
"""
