"""Text ⇄ vectors: load a model, the chunked forward pass, embed files."""
