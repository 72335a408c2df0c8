"""FREEZE: every layer of a frozen language model, through a small encoder of its own, in one similarity."""
