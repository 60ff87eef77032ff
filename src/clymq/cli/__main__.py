"""`python -m clymq.cli`: the command, for whoever has the interpreter and not the script: `clymq up` runs this."""

from clymq.cli.entry import main

main()
