"""The `minillm` program: its options, and what becomes of an error.

What a command does is in `minillm.commands`, one module each. Text goes to stdout, progress and
figures to stderr. An error is one line and exit code 1 (2 for a wrong use of the command line),
never a traceback unless `--debug` is given.
"""

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from minillm import __version__

EXAMPLES = """examples:
  minillm pull smollm2
  minillm generate "What is gravity?"
  minillm generate --raw "The capital of France is" --max-new-tokens 3
  echo "Write one sentence about the sea." | minillm generate - --temperature 0.8 --seed 1
  minillm chat --system "You answer in one sentence."
  minillm tokenize "How does inference work?" --json
  minillm inspect smollm2
  minillm generate "Tell me a long story." --window 256 --sinks 4 --max-new-tokens 2000
  minillm eval smollm2 --text notes.txt --compare-dtype bfloat16
  minillm eval smollm2 --text notes.txt --compare-quantize int4
  minillm save model.gguf --out model --dtype bfloat16
  minillm generate "What is gravity?" --quantize int4 --kv-cache int8
  minillm quantize smollm2 --method gptq --group-size 64 --out smollm2-gptq
  minillm bench --prompt-tokens 42,300 --compare transformers
  minillm bench --cold --plot roofline.png
  minillm doctor
"""
GROUP_SIZE = "weights that share a scale (default: rows for int8; 128, 64 or 32, which fits)"
QUANTIZE = ["int8", "int4", "gguf"]
KV_CACHE = ["int8", "int4", "float16", "bfloat16", "float32"]
MODEL = "name, folder, .gguf file, or hub id that was pulled (default: smollm2)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows a substitute instead of ending the answer.
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            importlib.import_module(f"minillm.commands.{arguments.command}").run(arguments)
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

    def add(name: str, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(command=name)
        # Suppressed, or its default would undo a --debug before the command's name.
        command.add_argument("--debug", default=argparse.SUPPRESS, **debug)
        return command

    generate = add("generate", "stream the answer to one prompt")
    generate.add_argument("prompt", help="the prompt; - reads it from standard input")
    generate.add_argument(
        "--raw",
        action="store_true",
        help="continue the text as it stands, without the model's chat template",
    )
    generate.add_argument("--system", help="a system message before the prompt")
    _add_model(generate)
    _add_sampling(generate)

    chat = add("chat", "talk to the model; /reset forgets, /exit or Ctrl-D ends")
    chat.add_argument("--system", help="a system message before the conversation")
    _add_model(chat)
    _add_sampling(chat, max_new_tokens=512)

    tokenize = add("tokenize", "show how a text is cut into tokens")
    tokenize.add_argument("text", help="the text; - reads it from standard input")
    tokenize.add_argument("--model", default="smollm2", help=MODEL)
    tokenize.add_argument("--json", action="store_true", help="print ids and pieces as JSON")
    tokenize.add_argument(
        "--special", action="store_true", help="read the text of special tokens as those tokens"
    )

    inspect = add("inspect", "show a model's architecture, parameters and memory")
    inspect.add_argument("model", nargs="?", default="smollm2", help=MODEL)
    inspect.add_argument("--json", action="store_true", help="print as JSON")

    pull = add("pull", "fetch a model into the cache")
    pull.add_argument(
        "model", help="smollm2, or on the Hugging Face hub owner/name, or owner/name:FILE.gguf"
    )
    pull.add_argument("--quiet", action="store_true", help="no progress")
    pull.add_argument(
        "--verify", action="store_true", help="compare every byte of what is there, too"
    )

    save = add("save", "write a model, such as a .gguf file, as a Hugging Face folder")
    save.add_argument("model", help=MODEL)
    save.add_argument("--out", metavar="FOLDER", required=True, help="a new or an empty folder")
    save.add_argument("--dtype", default="float32", help="float32 (default), bfloat16 or float16")

    quantize = add("quantize", "write a model with weights of 8 or 4 bits, in the format of GPTQ")
    quantize.add_argument("model", nargs="?", default="smollm2", help=MODEL)
    quantize.add_argument(
        "--method",
        required=True,
        choices=["int8", "int4", "gptq", "awq"],
        help="int8, int4: the nearest value; gptq, awq: chosen with calibration text",
    )
    quantize.add_argument("--out", metavar="FOLDER", required=True, help="a new or an empty folder")
    quantize.add_argument(
        "--bits", type=int, choices=[4, 8], help="4 or 8 (default: 8 for int8, else 4)"
    )
    quantize.add_argument("--group-size", type=int, metavar="N", help=GROUP_SIZE)
    quantize.add_argument(
        "--symmetric",
        action=argparse.BooleanOptionalAction,
        help="without zero points, as vLLM's fast kernels need it (default: for int8 only)",
    )
    quantize.add_argument(
        "--act-order", action="store_true", help="gptq: columns with the largest inputs first"
    )
    quantize.add_argument(
        "--calibration", metavar="FILE", help="a text file (default: one that comes with minillm)"
    )
    quantize.add_argument(
        "--calibration-tokens", type=int, default=8192, metavar="N", help="default: 8192"
    )
    quantize.add_argument("--seed", type=int, default=0, help="picks the passages (default: 0)")
    quantize.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    quantize.add_argument(
        "--dtype", default="float32", help="of all other weights (default: float32)"
    )

    evaluate = add("eval", "measure how well a model predicts a text (perplexity)")
    evaluate.add_argument("model", nargs="?", default="smollm2", help=MODEL)
    evaluate.add_argument(
        "--text", metavar="FILE", required=True, help="a text file; - is standard input"
    )
    evaluate.add_argument(
        "--context",
        type=int,
        metavar="N",
        help="tokens in a window (default: 2048, or the model's)",
    )
    evaluate.add_argument(
        "--stride", type=int, metavar="N", help="tokens to the next window (default: context / 2)"
    )
    evaluate.add_argument(
        "--compare", metavar="OTHER", help="KL divergence of this model from MODEL (default: MODEL)"
    )
    evaluate.add_argument(
        "--compare-dtype", metavar="DTYPE", help="the type in which OTHER runs (default: --dtype)"
    )
    for name, choices in (("quantize", QUANTIZE), ("kv-cache", KV_CACHE)):
        evaluate.add_argument(
            f"--compare-{name}", choices=choices, help=f"OTHER's --{name} (default: that of MODEL)"
        )
    evaluate.add_argument("--json", action="store_true", help="print as JSON")
    _add_running(evaluate)

    bench = add("bench", "slow to start, or slow to stream: times, what is possible, what helps")
    _add_model(bench)
    for name, default, text in (
        ("--prompt-tokens", [42, 300], "lengths of the prompts (default: 42,300)"),
        ("--batch-sizes", [1, 4], "prompts at a time, each with each length (default: 1,4)"),
    ):
        bench.add_argument(name, type=_whole_numbers, default=default, metavar="N,N", help=text)
    bench.add_argument(
        "--new-tokens", type=int, default=32, metavar="N", help="of each answer (default: 32)"
    )
    bench.add_argument(
        "--runs", type=int, default=3, metavar="N", help="the median of so many (default: 3)"
    )
    bench.add_argument(
        "--compare", choices=["transformers"], help="measure this peer too, taking turns"
    )
    bench.add_argument(
        "--cold", action="store_true", help="measure the start of a process to its first token, too"
    )
    bench.add_argument("--plot", metavar="FILE.png", help="draw the roofline")
    bench.add_argument("--json", action="store_true", help="print as JSON")

    doctor = add("doctor", "list this machine's parts, and say which engine would run")
    doctor.add_argument("--json", action="store_true", help="print as JSON")
    return parser


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        reason = f"{text!r} is not a list of whole numbers with commas, such as 42,300"
        raise argparse.ArgumentTypeError(reason) from None


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2", help=MODEL)
    _add_running(parser, backend="auto")


def _add_running(parser: argparse.ArgumentParser, backend: str = "torch") -> None:
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument(
        "--quantize",
        choices=QUANTIZE,
        help="round the layers' weights on loading; gguf: keep the blocks of the .gguf file",
    )
    parser.add_argument(
        "--kv-cache",
        choices=KV_CACHE,
        help="keep keys and values in so many bits, or in this type",
    )
    parser.add_argument(
        "--backend",
        choices=["auto", "torch", "cpu", "cuda"],
        default=backend,
        help="auto: the fastest here, with the blocks of a .gguf file unless --dtype or --quantize "
        f"is given; torch: module by module; cpu, cuda: that engine (default: {backend})",
    )
    for name, default, text in (
        ("--group-size", None, f"with --quantize: {GROUP_SIZE}"),
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
