"""The paper's figures, from run folders and real structures, with Matplotlib.

``CATALOGUE`` has them by number; each module draws one of them or a few that belong together.
"""

from blockout.figures.catalogue import CATALOGUE, Entry
from blockout.figures.selection import CannotDraw
from blockout.figures.style import FORMS, Form, encoded

__all__ = ["CATALOGUE", "FORMS", "CannotDraw", "Entry", "Form", "encoded"]
