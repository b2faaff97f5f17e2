"""The paper's figures, drawn with Matplotlib from runs and real structures.

``CATALOGUE`` lists them by number. Each module draws one figure or a few that belong together.
"""

from blockout.show.figures.catalogue import CATALOGUE, Entry
from blockout.show.figures.selection import CannotDraw
from blockout.show.figures.style import FORMS, Form, encoded

__all__ = ["CATALOGUE", "FORMS", "CannotDraw", "Entry", "Form", "encoded"]
