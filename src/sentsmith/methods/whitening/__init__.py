"""BERT-whitening (Su et al. 2021): the linear baseline."""
