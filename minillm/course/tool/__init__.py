"""The notebook tool behind `python -m minillm.course`: sync, check, build, run, clean.

It reads Python with `ast`, notebooks as JSON, and never imports torch.
"""
