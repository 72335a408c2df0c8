"""Language models as writers: what they add to a corpus."""
