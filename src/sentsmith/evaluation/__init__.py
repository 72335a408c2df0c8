"""One file per protocol; knows only something that encodes."""
