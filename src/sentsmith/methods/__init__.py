"""One folder per method, the same rooms in each: ``objective`` (the loss) and ``recipe`` (settings and run)."""
