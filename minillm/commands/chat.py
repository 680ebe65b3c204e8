"""`minillm chat`: a conversation in the terminal."""

import argparse
import sys
from contextlib import suppress

from minillm.commands.generate import show
from minillm.commands.options import load, sampling, system_message
from minillm.llm import LLM


def run(arguments: argparse.Namespace) -> None:
    """Read a message, stream the answer, and so on until /exit or the end of the input."""
    params, llm = sampling(arguments), load(arguments)
    if llm.chat_template is None:
        raise ValueError(f"{llm.name} has no chat template; use generate --raw")
    system, history = system_message(arguments), list[dict[str, str]]()
    print("/reset forgets the conversation, /exit or Ctrl-D ends it.", file=sys.stderr)
    while True:
        try:
            text = _ask()
        except EOFError:
            return
        if text == "/exit":
            return
        if text == "/reset":
            history.clear()
            continue
        if not text:
            continue
        asked = [*history, {"role": "user", "content": text}]
        try:
            messages = fit_history(llm, system, asked, params.max_new_tokens)
        except ValueError as error:  # the conversation so far is worth more than this message
            print(f"minillm: error: {error}", file=sys.stderr)
            continue
        history = messages[len(system) :]
        stream = llm.stream_chat(messages, params)
        try:
            show(stream)
        except KeyboardInterrupt:  # ends the answer, not the program
            print(" [interrupted]", file=sys.stderr)
        history.append({"role": "assistant", "content": stream.output.text})


def _ask() -> str:
    """One line from the user. EOFError at the end of the input."""
    if not sys.stdin.isatty():  # there is nobody to prompt, and stdout is for the answers alone
        return input().strip()
    with suppress(ImportError):
        import readline  # noqa: F401  # gives `input` its arrow keys and its history
    while True:
        try:
            if sys.stdout.isatty():
                return input("> ").strip()
            print("> ", end="", file=sys.stderr, flush=True)
            return input().strip()
        except KeyboardInterrupt:
            print("\n(/exit or Ctrl-D ends the conversation)", file=sys.stderr)


def fit_history(
    llm: LLM, system: list[dict[str, str]], history: list[dict[str, str]], max_new_tokens: int
) -> list[dict[str, str]]:
    """The conversation as far as it fits the context with room for an answer.

    The oldest turns go first, a question with its answer; system message and last question stay.
    An answer gets max_new_tokens, or half of the context where that is less. Raises ValueError
    where the last question alone does not fit. Where windows make the context unlimited, all stays.
    """
    context = llm.config.context
    if context is None:
        return [*system, *history]
    room = context - min(max_new_tokens, context // 2)
    kept = list(history)
    while True:
        messages = [*system, *kept]
        length = len(llm.chat_ids(messages))
        if length <= room:
            return messages
        if len(kept) <= 2:
            raise ValueError(
                f"the message takes {length} tokens; the context of {context} has room for {room}"
            )
        kept = kept[2:]
