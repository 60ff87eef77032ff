"""`python -m clymq`: the command, for whoever has the interpreter and not the script."""

from clymq.cli.entry import main

main()
