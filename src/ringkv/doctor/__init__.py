"""`ringkv doctor`: what this machine can run, and whether its operators compute correctly.

Others import `report` and `verify`.
"""
