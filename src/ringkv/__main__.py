"""python -m ringkv: the command, where the shell does not find it."""

from ringkv.cli.main import main

main()
