"""`minillm bench`: how fast this machine runs a model, beside a peer."""

import argparse
import json
import sys
from collections.abc import Sequence

from minillm.bench import Measurement, machine, measure, minillm_engine, transformers_engine
from minillm.commands.options import load
from minillm.weights.pull import resolve


def run(arguments: argparse.Namespace) -> None:
    """Print one line for each shape of work and engine, or all as JSON."""
    if arguments.compare and arguments.window is not None:
        raise ValueError("--compare measures the model as it is; leave --window out")
    llm = load(arguments)
    engines = {"minillm": minillm_engine(llm)}
    if arguments.compare:
        engines["transformers"] = transformers_engine(
            resolve(arguments.model), device=llm.device, dtype=llm.dtype
        )
    here = machine(llm.device)
    print(f"{llm!r} on {here['cpu']}, {here['threads']} threads", file=sys.stderr)
    if not arguments.json:
        print("engine        prompt  batch   TTFT, ms   ITL, ms   prefill tok/s   decode tok/s")
    results = []
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
            if not arguments.json:
                _show(measured)
    if arguments.json:
        print(json.dumps({"machine": here, "model": arguments.model, "results": results}))


def _show(measured: Sequence[Measurement]) -> None:
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
