"""Guided training, beyond the paper: few, meaningful memberships."""

from blockout.guidance.guide import Guidance, Guide, GuideWarning

__all__ = ["Guidance", "Guide", "GuideWarning"]
