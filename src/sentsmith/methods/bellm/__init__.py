"""BeLLM (Li and Li 2024): a decoder that looks both ways."""
