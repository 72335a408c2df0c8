"""Ranking sentences: a language model writes lists that drift away, and a model is post-trained on their order.

The rooms:

    writing       seeds, advancing (or corruption), validation, output      sentences → lists
    training      objective, lists, loss, recipe                            lists and a model → a better model
"""
