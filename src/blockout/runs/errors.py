"""The one kind of error of the run folder."""


class RunError(RuntimeError):
    """The work cannot go on; the message says why and what to do. What was there stays."""


class ToldElsewhere(RunError):
    """Another process of the same training run has failed and says why."""
