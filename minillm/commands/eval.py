"""`minillm eval`: perplexity of a model on a text, and how far another model is from it."""

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

from minillm.commands.facts import show
from minillm.commands.options import load, read_text
from minillm.eval import Divergence, Reading, compare, perplexity, read, window_shape
from minillm.llm import LLM


def run(arguments: argparse.Namespace) -> None:
    """Print the figures, one a line, or all as JSON."""
    text = read_text(arguments.text)
    llm = load(arguments)
    context, stride = window_shape(llm.config, arguments.context, arguments.stride)
    ids = llm.tokenizer.encode(text)
    readings = _with_bar(read(llm, ids, context=context, stride=stride), len(ids) - 1)
    other = load(_other(arguments)) if arguments.compare or arguments.compare_dtype else None
    started = time.perf_counter()
    if other:
        divergence = compare(readings, read(other, text, context=context, stride=stride))
        found, comparison = divergence.reference, _comparison(arguments, other, divergence)
    else:
        found, comparison = perplexity(readings), {}
    seconds = time.perf_counter() - started
    text_bytes = len(text.encode())
    text_tokens = len(ids) - len(llm.tokenizer.encode(""))  # without BOS
    facts = {
        "model": arguments.model,
        "dtype": str(llm.dtype).removeprefix("torch."),
        "perplexity": found.perplexity,
        "nats per token": found.nll,
        "bits per byte": found.bits_per_byte(text_tokens / text_bytes),
        "tokens scored": found.tokens,
        "tokens": len(ids),
        "bytes": text_bytes,
        "context": context,
        "stride": stride,
    }
    if arguments.json:
        facts |= {"seconds": seconds, "tokens per second": found.tokens / seconds}
    show(facts | comparison, as_json=arguments.json)
    print(
        f"[{found.tokens} tokens in {seconds:.1f} s, {found.tokens / seconds:.1f} tokens/s]",
        file=sys.stderr,
    )


def _other(arguments: argparse.Namespace) -> argparse.Namespace:
    """The options as they stand for the model that --compare and --compare-dtype name."""
    changed = {
        "model": arguments.compare or arguments.model,
        "dtype": arguments.compare_dtype or arguments.dtype,
    }
    return argparse.Namespace(**(vars(arguments) | changed))


def _comparison(
    arguments: argparse.Namespace, other: LLM, divergence: Divergence
) -> dict[str, Any]:
    return {
        "compared with": arguments.compare or arguments.model,
        "its dtype": str(other.dtype).removeprefix("torch."),
        "its perplexity": divergence.other.perplexity,
        "KL divergence, nats": divergence.mean,
        "KL median": divergence.median,
        "KL 99th percentile": divergence.percentile_99,
        "KL maximum": divergence.maximum,
        "same top token": divergence.same_top,
        "its standard error": divergence.same_top_error,
    }


def _with_bar(readings: Iterator[Reading], total: int) -> Iterator[Reading]:
    """The readings as they come, with a bar on stderr where that is a terminal."""
    from tqdm import tqdm

    with tqdm(total=total, unit="tokens", leave=False, disable=None) as bar:
        for reading in readings:
            yield reading
            bar.update(len(reading.targets))
