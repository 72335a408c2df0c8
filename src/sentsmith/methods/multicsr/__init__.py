"""MultiCSR: a language model writes training pairs, curates them, and training masks in-batch false negatives.

The rooms, by stage:

    stage 1   generation (with demonstrations)      sentences → triplets
    stage 2   curation, scored, scoring             triplets → those that are kept
    stage 3   objective, masking, recipe            triplets → a model
    direct                                          the language model scores STS pairs itself
"""
