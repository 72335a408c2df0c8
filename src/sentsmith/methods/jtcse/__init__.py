"""JTCSE: two towers trained on the direction and the length of their vectors, with attention that crosses between."""
