"""The version of ringkv that serves."""

from importlib import import_module

# By name: a plain import of the package counts as one of all that it offers, the engine among it.
VERSION: str = import_module("ringkv").__version__
