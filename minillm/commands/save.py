"""`minillm save`: write a model as a Hugging Face folder."""

import argparse

from minillm.llm import LLM


def run(arguments: argparse.Namespace) -> None:
    """Print the folder that then holds the model."""
    llm = LLM.from_pretrained(arguments.model, device="cpu", dtype=arguments.dtype)
    print(llm.save(arguments.out))
