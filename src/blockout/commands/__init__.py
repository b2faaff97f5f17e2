"""One file a command, each with ``run``: its words to an exit code."""
