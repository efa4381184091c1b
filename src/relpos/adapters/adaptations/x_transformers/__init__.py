"""Attentions of x-transformers, a file for what its layers are made of."""
