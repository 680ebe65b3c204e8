"""KV caches: one contract (`base`), one file for each way to keep it."""
