"""The commands of the `minillm` program, one module each; `minillm.cli` reads their options.

Each module has a `run(arguments)`. It is imported only when its command is asked for: not every
one needs torch, which takes seconds to load.
"""
