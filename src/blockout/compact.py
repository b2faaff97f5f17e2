"""The hierarchy made physical."""
