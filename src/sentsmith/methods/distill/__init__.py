"""Distillation: one small or single tower learns the vectors of frozen teachers (TNCSE, JTCSE)."""
