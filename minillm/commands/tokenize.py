"""`minillm tokenize`: how a text is cut into tokens."""

import argparse
import json
import sys

from minillm.commands.options import text_of
from minillm.weights.pull import resolve
from minillm.weights.source import open_source


def run(arguments: argparse.Namespace) -> None:
    """Print the ids of a text with their pieces."""
    tokenizer = open_source(resolve(arguments.model)).tokenizer
    special = "all" if arguments.special else "none"
    ids = tokenizer.encode(text_of(arguments.text), allowed_special=special)
    pieces = tokenizer.pieces(ids)
    if arguments.json:
        print(json.dumps({"ids": ids, "pieces": pieces}, ensure_ascii=False))
        return
    for token_id, piece in zip(ids, pieces, strict=True):
        print(f"{token_id:>7}  {piece!r}")
    print(f"[{len(ids)} tokens]", file=sys.stderr)
