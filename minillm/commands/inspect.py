"""`minillm inspect`: what a model is made of, and what memory it takes."""

import argparse

from minillm.commands.facts import show
from minillm.inspection import inspect_model


def run(arguments: argparse.Namespace) -> None:
    """Print one fact a line, or all as JSON."""
    show(inspect_model(arguments.model), as_json=arguments.json)
