"""What is shown of runs, computed once; ``page`` and ``figures`` draw it."""
