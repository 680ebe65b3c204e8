"""The layers of a Transformer: pure functions, and thin modules that hold their weights."""
