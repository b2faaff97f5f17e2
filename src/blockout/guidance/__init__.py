"""Guided training, beyond the paper: few, meaningful memberships that settle before the end."""

from blockout.guidance.guide import Guidance, Guide

__all__ = ["Guidance", "Guide"]
