"""`minillm generate`: stream the answer to one prompt."""

import argparse
import sys

from minillm.commands.options import load, sampling, system_message, text_of
from minillm.streaming import TextStream


def run(arguments: argparse.Namespace) -> None:
    """Stream the answer, through the chat template where the model has one."""
    params, prompt = sampling(arguments), text_of(arguments.prompt)
    if arguments.raw and arguments.system:
        raise ValueError("--system needs the chat template, which --raw leaves out")
    llm = load(arguments)
    if arguments.raw or (llm.chat_template is None and not arguments.system):
        show(llm.stream(prompt, params))
        return
    messages = [*system_message(arguments), {"role": "user", "content": prompt}]
    show(llm.stream_chat(messages, params))


def show(stream: TextStream) -> None:
    """Print a stream as it comes, and its figures to stderr."""
    with stream:
        for piece in stream:
            print(piece, end="", flush=True)
    print(flush=True)
    stats = stream.output.stats
    print(
        f"[{stats.prompt_tokens} prompt tokens, first token after {stats.ttft_s:.2f} s; "
        f"{stats.output_tokens} tokens, {stats.decode_tokens_per_s:.1f} tokens/s; "
        f"{stream.output.finish_reason}]",
        file=sys.stderr,
    )
