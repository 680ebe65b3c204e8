"""Weights: fetch a model, convert it, open its files, build the Transformer around them."""
