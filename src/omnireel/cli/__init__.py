"""The command line. A command is a file here with a COMMAND; `main` finds and runs it, `show` prints for it."""
