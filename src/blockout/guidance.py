"""Memberships under guidance: a budget, an affinity of classes, and a settled structure."""
