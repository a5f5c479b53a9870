"""`ringkv eval`: tasks, scores, and what compression costs.

Others import `cells`, `costs`, `evaluate`, `journal`, `needed`, `offers`, `pending`, `report`, `sample` and
`tasks.catalogue`.
"""
