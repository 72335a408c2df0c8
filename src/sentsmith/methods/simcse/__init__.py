"""SimCSE, unsupervised and supervised (Gao et al. 2021): the contrastive baseline."""
