"""MultiCSR: a language model writes training pairs, curates them, and training masks in-batch false negatives."""
