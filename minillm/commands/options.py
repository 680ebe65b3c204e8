"""What several commands make of their options."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minillm.llm import LLM
    from minillm.sampling import SamplingParams


def text_of(argument: str) -> str:
    """The text of an argument, or of standard input for "-" (without its last line ends)."""
    return sys.stdin.read().rstrip("\n") if argument == "-" else argument


def read_text(name: str) -> str:
    """The text of a file, or of standard input for "-", byte for byte."""
    raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not a text in UTF-8 ({error})") from error
    if not text:
        raise ValueError(f"{name}: empty; a text is needed")
    if "\0" in text:
        raise ValueError(f"{name}: not a text, it holds bytes of value 0")
    return text


def load(arguments: argparse.Namespace) -> "LLM":
    """The model that the options name."""
    from minillm.llm import LLM

    return LLM.from_pretrained(arguments.model, **running(arguments))


def running(arguments: argparse.Namespace) -> dict[str, Any]:
    """How the options want the model to be loaded and run: arguments of `from_pretrained`."""
    names = ["device", "dtype", "quantize", "group_size", "kv_cache"]
    names += ["backend", "window", "sinks", "global_every"]
    return {name: getattr(arguments, name) for name in names}


def sampling(arguments: argparse.Namespace) -> "SamplingParams":
    """How the options want the next token to be chosen, and when to end."""
    from minillm.sampling import SamplingParams

    return SamplingParams(
        max_new_tokens=arguments.max_new_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        min_p=arguments.min_p,
        repetition_penalty=arguments.repetition_penalty,
        seed=arguments.seed,
        stop=arguments.stop,
        stop_token_ids=arguments.stop_token_id,
        ignore_eos=arguments.ignore_eos,
    )


def system_message(arguments: argparse.Namespace) -> list[dict[str, str]]:
    """The message that --system asks for, if it was given."""
    return [{"role": "system", "content": arguments.system}] if arguments.system else []
