"""Vectors → index → nearest sentences."""
