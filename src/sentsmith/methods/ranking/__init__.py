"""Ranking sentences: lists that drift away from a sentence step by step, and models that learn their order."""
