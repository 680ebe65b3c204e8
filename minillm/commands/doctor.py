"""`minillm doctor`: what this machine has, and which engine would run."""

import argparse
import json

from minillm.commands.facts import show
from minillm.doctor import checkup


def run(arguments: argparse.Namespace) -> None:
    """Print the facts, what is wrong, and each backend with the reason why it would not run."""
    found = checkup()
    if arguments.json:
        print(
            json.dumps(
                {
                    "facts": found.facts,
                    "warnings": found.warnings,
                    "backends": found.backends,
                    "chosen": found.chosen,
                }
            )
        )
        return
    show(found.facts, as_json=False)
    print()
    for warning in found.warnings:
        print(f"warning: {warning}")
    print(f"--backend auto runs: {found.chosen or 'nothing, it ends in an error'}")
    for name, reason in found.backends.items():
        if reason is not None:
            print(f"  not {name}: {reason}")
