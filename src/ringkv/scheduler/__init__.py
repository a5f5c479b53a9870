"""What the engine does next, and the loop that does it.

Others import `actions`, `job`, `loop`, `scheduler` and `stopwatch`.
"""
