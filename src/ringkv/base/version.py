"""The version of ringkv."""

VERSION = "0.1.0"
