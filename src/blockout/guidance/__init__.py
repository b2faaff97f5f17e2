"""Guided training, beyond the paper: few, meaningful memberships."""

from blockout.guidance.certain import make_certain
from blockout.guidance.guide import Guidance, Guide, GuideWarning

__all__ = ["Guidance", "Guide", "GuideWarning", "make_certain"]
