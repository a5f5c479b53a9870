"""What the operating system and the processor give: compiler, folders, locks, signals.

Others import any module of it.
"""
