"""What a reader calls the layers and sets of nodes of the head of Fig. 7."""

from collections.abc import Iterable

SETS = {"P_0": "outputs of FC1", "P_1": "outputs of FC2", "P_2": "the classes"}
LAYERS = {"head.fc2": "FC2", "head.classifier": "the classifier"}


def nodes_called(name: str, names: Iterable[str]) -> str:
    """One set of nodes with its place among all ``names``; alone in a model of one's own.

    >>> nodes_called("P_0", ["P_0", "P_1", "P_2"]), nodes_called("P_0", ["P_0", "P_1"])
    ('P_0: outputs of FC1', 'P_0')
    """
    return f"{name}: {SETS[name]}" if list(names) == list(SETS) else name


def layer_called(name: str) -> str:
    """
    >>> layer_called("head.fc2"), layer_called("layers.3")
    ('FC2', 'layers.3')
    """
    return LAYERS.get(name, name)
