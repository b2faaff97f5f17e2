"""Writes networks to files that run elsewhere, and reads them back."""

from blockout.export.about import About, ExportError
from blockout.export.reading import FORMATS, ExportedModel, Format, load_exported
from blockout.export.writing import BATCHES, TOLERANCE, Export, compare, export, folded

__all__ = [
    "BATCHES",
    "FORMATS",
    "TOLERANCE",
    "About",
    "Export",
    "ExportError",
    "ExportedModel",
    "Format",
    "compare",
    "export",
    "folded",
    "load_exported",
]
