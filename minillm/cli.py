"""The `minillm` command: generate, chat, tokenize, inspect, pull, bench.

Text goes to stdout, progress and figures to stderr. An error is one line and exit code 1 (2 for a
wrong use of the command line), never a traceback unless `--debug` is given.
"""

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from minillm import __version__

if TYPE_CHECKING:
    from minillm.llm import LLM, GenerationStats, TextStream
    from minillm.sampling import SamplingParams

EXAMPLES = """examples:
  minillm pull smollm2
  minillm generate "What is the capital of France?"
  minillm generate --raw "The capital of France is" --max-new-tokens 3
  echo "Write one sentence about the sea." | minillm generate - --temperature 0.8 --seed 1
  minillm chat --system "You answer in one sentence."
  minillm tokenize "How does inference work?" --json
  minillm inspect smollm2
  minillm generate "Tell me a long story." --window 256 --sinks 4 --max-new-tokens 2000
  minillm bench --prompt-tokens 42,300 --compare transformers
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows a substitute instead of ending the answer.
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        command: Callable[[argparse.Namespace], None] = arguments.command
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            command(arguments)
        sys.stdout.flush()
        return 0
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has closed it (`minillm generate … | head`). Python would
        # complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if arguments.debug:
            raise
        reason = " ".join(str(error).split())
        if not isinstance(error, ValueError | OSError | RuntimeError) or not reason:
            # Not a fault of the input that anyone foresaw: the message alone may say nothing.
            reason = f"{type(error).__name__}: {reason} (--debug shows where)"
        print(f"minillm: error: {reason:.1000}", file=sys.stderr)
        return 1


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"minillm: warning: {message}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports a wrong use in one line, as every other error."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"minillm: error: {message} (`{self.prog} --help` explains)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="minillm",
        description="Run a language model: from a prompt to streamed text.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"minillm {__version__}")
    debug: dict[str, Any] = {"action": "store_true", "help": "show the traceback of an error"}
    parser.add_argument("--debug", **debug)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], None], text: str) -> Any:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(command=run)
        # Suppressed, or its default would undo a --debug before the command's name.
        command.add_argument("--debug", default=argparse.SUPPRESS, **debug)
        return command

    generate = add("generate", _generate, "stream the answer to one prompt")
    generate.add_argument("prompt", help="the prompt; - reads it from standard input")
    generate.add_argument(
        "--raw",
        action="store_true",
        help="continue the text as it stands, without the model's chat template",
    )
    generate.add_argument("--system", help="a system message before the prompt")
    _add_model(generate)
    _add_sampling(generate)

    chat = add("chat", _chat, "talk to the model; /reset forgets, /exit or Ctrl-D ends")
    chat.add_argument("--system", help="a system message before the conversation")
    _add_model(chat)
    _add_sampling(chat, max_new_tokens=512)

    tokenize = add("tokenize", _tokenize, "show how a text is cut into tokens")
    tokenize.add_argument("text", help="the text; - reads it from standard input")
    tokenize.add_argument("--model", default="smollm2", help="name or folder (default: smollm2)")
    tokenize.add_argument("--json", action="store_true", help="print ids and pieces as JSON")
    tokenize.add_argument(
        "--special", action="store_true", help="read the text of special tokens as those tokens"
    )

    inspect = add("inspect", _inspect, "show a model's architecture, parameters and memory")
    inspect.add_argument("model", nargs="?", default="smollm2", help="name or folder")
    inspect.add_argument("--json", action="store_true", help="print as JSON")

    pull = add("pull", _pull, "fetch a model into the cache")
    pull.add_argument("model", help="smollm2, or owner/name on the Hugging Face hub")
    pull.add_argument("--quiet", action="store_true", help="no progress")

    bench = add("bench", _bench, "measure TTFT, ITL and tokens per second on this machine")
    _add_model(bench)
    bench.add_argument("--prompt-tokens", type=_whole_numbers, default=[42, 300], metavar="N,N")
    bench.add_argument("--batch-sizes", type=_whole_numbers, default=[1, 4], metavar="N,N")
    bench.add_argument("--new-tokens", type=int, default=32, help="default: 32")
    bench.add_argument("--runs", type=int, default=3, help="the median of so many (default: 3)")
    bench.add_argument(
        "--compare", choices=["transformers"], help="measure this peer too, taking turns"
    )
    bench.add_argument("--json", action="store_true", help="print as JSON")
    return parser


def _whole_numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2", help="name, folder or hub id that was pulled")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    for name, default, text in (
        ("--window", None, "each layer sees the last N tokens only"),
        ("--sinks", 0, "and the first N tokens (default: 0)"),
        ("--global-every", None, "but each N-th layer goes on seeing all"),
    ):
        parser.add_argument(name, type=int, default=default, metavar="N", help=text)


def _add_sampling(parser: argparse.ArgumentParser, max_new_tokens: int = 256) -> None:
    add = parser.add_argument
    add("--max-new-tokens", type=int, default=max_new_tokens, help=f"default: {max_new_tokens}")
    add("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    add("--top-k", type=int, default=0, help="keep the k most likely tokens; 0 is off (default)")
    add("--top-p", type=float, default=1.0, help="keep this mass of likely tokens; 1 is off")
    add("--min-p", type=float, default=0.0, help="keep tokens this likely relative to the top one")
    add("--repetition-penalty", type=float, default=1.0, help="above 1 discourages repetition")
    add("--seed", type=int, help="repeat a random answer")
    add("--stop", action="append", default=[], help="text that ends the answer (repeatable)")
    add("--stop-token-id", action="append", type=int, default=[], help="id that ends the answer")
    add("--ignore-eos", action="store_true", help="go on after the model's end token")


def _sampling(arguments: argparse.Namespace) -> "SamplingParams":
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


def _load(arguments: argparse.Namespace) -> "LLM":
    from minillm.llm import LLM

    options = ("device", "dtype", "window", "sinks", "global_every")
    return LLM.from_pretrained(
        arguments.model, **{name: getattr(arguments, name) for name in options}
    )


def _text(argument: str) -> str:
    return sys.stdin.read().rstrip("\n") if argument == "-" else argument


def _show(stream: "TextStream") -> "GenerationStats":
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
    return stats


def _generate(arguments: argparse.Namespace) -> None:
    params, prompt = _sampling(arguments), _text(arguments.prompt)
    if arguments.raw and arguments.system:
        raise ValueError("--system needs the chat template, which --raw leaves out")
    llm = _load(arguments)
    if arguments.raw or (llm.chat_template is None and not arguments.system):
        _show(llm.stream(prompt, params))
        return
    _show(llm.stream_chat([*_system(arguments), {"role": "user", "content": prompt}], params))


def _system(arguments: argparse.Namespace) -> list[dict[str, str]]:
    return [{"role": "system", "content": arguments.system}] if arguments.system else []


def _chat(arguments: argparse.Namespace) -> None:
    params, llm = _sampling(arguments), _load(arguments)
    if llm.chat_template is None:
        raise ValueError(f"{llm.name} has no chat template; use generate --raw")
    history: list[dict[str, str]] = []
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
            messages = fit_history(llm, _system(arguments), asked, params.max_new_tokens)
        except ValueError as error:  # the conversation so far is worth more than this message
            print(f"minillm: error: {error}", file=sys.stderr)
            continue
        history = messages[len(_system(arguments)) :]
        stream = llm.stream_chat(messages, params)
        try:
            _show(stream)
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
    llm: "LLM", system: list[dict[str, str]], history: list[dict[str, str]], max_new_tokens: int
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


def _tokenize(arguments: argparse.Namespace) -> None:
    from minillm.tokenizer import Tokenizer
    from minillm.weights.pull import resolve

    tokenizer = Tokenizer.from_file(resolve(arguments.model) / "tokenizer.json")
    special = "all" if arguments.special else "none"
    ids = tokenizer.encode(_text(arguments.text), allowed_special=special)
    pieces = tokenizer.pieces(ids)
    if arguments.json:
        print(json.dumps({"ids": ids, "pieces": pieces}, ensure_ascii=False))
        return
    for token_id, piece in zip(ids, pieces, strict=True):
        print(f"{token_id:>7}  {piece!r}")
    print(f"[{len(ids)} tokens]", file=sys.stderr)


def _inspect(arguments: argparse.Namespace) -> None:
    facts = inspect_model(arguments.model)
    if arguments.json:
        print(json.dumps(facts))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}: {_bytes(number)}" for key, number in value.items())
        elif isinstance(value, int) and not isinstance(value, bool):
            value = f"{value:,}"
        print(f"{name:<{width}}  {value}")


def inspect_model(name: str) -> dict[str, Any]:
    """Architecture and arithmetic of a model, from its config.json alone."""
    from minillm.config import read_json
    from minillm.families import read_config
    from minillm.weights.pull import resolve

    folder = resolve(name)
    settings = read_json(folder / "config.json")
    config = read_config(settings)
    parameters, context = config.num_parameters(), config.max_position_embeddings
    embedding = config.vocab_size * config.hidden_size
    per_token = {kind: config.cache_bytes_per_token(size) for kind, size in WIDTHS.items()}
    windows = {layer.sliding_window for layer in config.layers}
    rope = config.layers[0].rope
    return {
        "folder": str(folder),
        "model_type": settings["model_type"],
        "layers (L)": config.num_hidden_layers,
        "width (C)": config.hidden_size,
        "query heads (H)": config.num_attention_heads,
        "key/value heads (K)": config.num_key_value_heads,
        "head dim (D)": config.head_dim,
        "feed-forward width (F)": config.intermediate_size,
        "vocabulary (V)": config.vocab_size,
        "context, tokens": context,
        "sliding window": " and ".join(sorted(str(w or "none") for w in windows)),
        "RoPE": f"{rope.rope_type}, base {rope.rope_theta:,.0f}" if rope else "none",
        "tied output head": config.tie_word_embeddings,
        "parameters": parameters,
        "of these in the embedding": embedding,
        "weight bytes": {kind: parameters * size for kind, size in WIDTHS.items()},
        "cache bytes per token": per_token,
        "cache bytes, full context": {kind: n * context for kind, n in per_token.items()},
    }


WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}


def _bytes(number: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number} B"


def _pull(arguments: argparse.Namespace) -> None:
    from minillm.weights.pull import pull

    print(pull(arguments.model, quiet=arguments.quiet))


def _bench(arguments: argparse.Namespace) -> None:
    from minillm.bench import machine, measure, minillm_engine, transformers_engine
    from minillm.weights.pull import resolve

    if arguments.compare and arguments.window is not None:
        raise ValueError("--compare measures the model as it is; leave --window out")
    llm = _load(arguments)
    engines = {"minillm": minillm_engine(llm)}
    if arguments.compare:
        engines["transformers"] = transformers_engine(
            resolve(arguments.model), device=llm.device, dtype=llm.dtype
        )
    here = machine(llm.device)
    print(f"{llm!r} on {here['cpu']}, {here['threads']} threads", file=sys.stderr)
    results = []
    if not arguments.json:
        print("engine        prompt  batch   TTFT, ms   ITL, ms   prefill tok/s   decode tok/s")
    for prompt_tokens in arguments.prompt_tokens:
        for batch_size in arguments.batch_sizes:
            measured = measure(
                engines,
                llm.config.vocab_size,
                prompt_tokens=prompt_tokens,
                batch_size=batch_size,
                new_tokens=arguments.new_tokens,
                runs=arguments.runs,
            )
            results += [m.as_dict() for m in measured]
            if arguments.json:
                continue
            for m in measured:
                print(
                    f"{m.engine:<12} {m.prompt_tokens:>7} {m.batch_size:>6} "
                    f"{m.ttft_s * 1e3:>10.1f} {m.itl_s * 1e3:>9.1f} "
                    f"{m.prefill_tokens_per_s:>15.0f} "
                    f"{m.decode_tokens_per_s:>14.1f}",
                    flush=True,
                )
            if len(measured) == 2:
                ours, peer = measured
                print(
                    f"  ratio: prefill {peer.ttft_s / ours.ttft_s:.2f}, decode "
                    f"{peer.itl_s / ours.itl_s:.2f} (above 1: minillm is faster)",
                    flush=True,
                )
    if arguments.json:
        print(json.dumps({"machine": here, "model": arguments.model, "results": results}))


if __name__ == "__main__":
    sys.exit(main())
