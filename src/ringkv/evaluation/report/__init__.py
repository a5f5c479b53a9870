"""The report of an evaluation as a page with charts.

Others import `page` and `rows`.
"""
