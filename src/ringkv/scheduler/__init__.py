"""What the engine does next, and the loop that does it.

Others import `loop`, `scheduler` and `stopwatch`.
"""
