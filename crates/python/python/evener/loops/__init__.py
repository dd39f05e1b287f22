"""Loops shared between workers: analysis, rewriting, and replaying of effects."""
