"""One file per verb; parses, calls, prints; no logic."""
