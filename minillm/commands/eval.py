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

# Options that --compare-… sets for the other model.
COMPARED = ("dtype", "quantize", "kv_cache")


def run(arguments: argparse.Namespace) -> None:
    """Print the figures, one a line, or all as JSON."""
    text = read_text(arguments.text)
    # A group size alone is that of the other model.
    alone = arguments.compare_quantize and not arguments.quantize
    llm = load(_changed(arguments, group_size=None if alone else arguments.group_size))
    context, stride = window_shape(llm.config, arguments.context, arguments.stride)
    ids = llm.tokenizer.encode(text)
    readings = _with_bar(read(llm, ids, context=context, stride=stride), len(ids) - 1)
    compared = {name: getattr(arguments, f"compare_{name}") for name in COMPARED}
    wanted = {name: value for name, value in compared.items() if value is not None}
    wanted |= {"model": arguments.compare or arguments.model}
    other = load(_changed(arguments, **wanted)) if arguments.compare or len(wanted) > 1 else None
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


def _changed(arguments: argparse.Namespace, **changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**(vars(arguments) | changes))


def _comparison(
    arguments: argparse.Namespace, other: LLM, divergence: Divergence
) -> dict[str, Any]:
    return {
        "compared with": arguments.compare or arguments.model,
        "its dtype": str(other.dtype).removeprefix("torch."),
        "its layers": arguments.compare_quantize or arguments.quantize or "as in its files",
        "its KV cache": other.kv_cache or "as its dtype",
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
