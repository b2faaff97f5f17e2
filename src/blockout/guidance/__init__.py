"""Guided training, beyond the paper: few, meaningful memberships."""

from blockout.guidance.certain import make_certain
from blockout.guidance.guide import Guide, GuideWarning
from blockout.guidance.settings import Guidance

__all__ = ["Guidance", "Guide", "GuideWarning", "make_certain"]
