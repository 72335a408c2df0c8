"""Text on disk ⇄ typed rows: read, clean, split, sample, audit."""
