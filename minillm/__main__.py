"""`python -m minillm`: the `minillm` program, where its script is not on the path."""

import sys

from minillm.cli import main

if __name__ == "__main__":
    sys.exit(main())
