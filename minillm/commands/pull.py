"""`minillm pull`: fetch a model into the cache."""

import argparse

from minillm.weights.pull import pull


def run(arguments: argparse.Namespace) -> None:
    """Print the folder of the model that is then there."""
    print(pull(arguments.model, quiet=arguments.quiet, verify=arguments.verify))
