"""The main job on what this machine has: train, measure before and after, search, show."""
