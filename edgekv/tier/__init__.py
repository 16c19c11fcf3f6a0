"""Frames that left a context, on disk, and how they are found again. See docs/tiers.md."""
