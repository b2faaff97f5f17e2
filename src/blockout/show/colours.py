"""The colours that the page and the figures share."""

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#999999")
"""Okabe and Ito's palette: distinct for colour-blind readers too, on light and on dark."""
OF_GROUPS = tuple(colour for colour in PALETTE if colour != "#F0E442")
"""For lines and dots of groups of runs: without yellow, which is lost on white."""
LINE = "#888888"
"""For lines and areas without a cluster of their own; visible on light and on dark."""


def cluster_colour(cluster: int) -> str:
    """The colour of a cluster, the same everywhere; colours repeat after eight clusters.

    >>> cluster_colour(0) == cluster_colour(8)
    True
    """
    return PALETTE[cluster % len(PALETTE)]
