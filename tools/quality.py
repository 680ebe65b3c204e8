"""Print what fewer bits cost on the real model: every method's size, perplexity and KL divergence.

    python tools/quality.py                            # all methods (minutes)
    python tools/quality.py --only int4-64 gptq-64     # these, next to full precision
    python tools/quality.py --tokens 512 --json quality.json
    python tools/quality.py --speed                    # instead: how fast each one runs (minutes)

One model at a time is changed and measured on one window of text. The exit code is 1 where an
ordering that must hold does not.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from datetime import date
from pathlib import Path

from minillm import LLM
from minillm.bench import machine
from minillm.course.measurements.nb07 import head, measured
from minillm.course.quality import TOKENS, Quality, claims
from minillm.course.speed import ALIKE, LONG_PROMPT, NOTE, PROMPT, columns, speeds
from minillm.course.storage import METHODS
from minillm.course.tool.run import high_water_bytes
from minillm.quantization.memory import trim

WIDTH = max(len(method.title) for method in METHODS.values())
SOURCE_GRID = """\
The weights were 4-bit numbers before: each group of 32 has 16 values, evenly spaced from a
minimum that is a floating-point number. Rounded to that same grid (INT4, groups of 32, float
minimum) they would come back unchanged, with a KL of 0, which says nothing about the method.
The groups of 64 below have other scales, and zero points that are whole numbers."""


def main() -> int:
    """Measure, print the table, and say whether the orderings hold."""
    arguments = parse()
    started = time.perf_counter()
    llm = LLM.from_pretrained(arguments.model, device="cpu", dtype="float32")
    if arguments.speed:
        print_speeds(llm, arguments.only)
        return 0
    about = head(llm, arguments.tokens)
    print_head(about)
    rows: dict[str, Quality] = {}
    for row in measured(llm, arguments.only, arguments.tokens):
        rows[row.name] = row
        print_row(row)
        trim()  # or what this method has freed would count on top of the next one
    holds = print_claims(rows)
    print(f"\n{time.perf_counter() - started:.0f} s, peak of resident memory {peak_memory()}")
    if arguments.json:
        found = about | {"rows": [asdict(row) for row in rows.values()]}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if holds else 1


def parse() -> argparse.Namespace:
    """The options; float32 is measured in any case, as all else is compared with it."""
    parser = argparse.ArgumentParser(description="What fewer bits cost, method by method.")
    parser.add_argument("--model", default="smollm2", help="default: smollm2")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"from: {', '.join(METHODS)}")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"2 to {TOKENS}, the default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--speed", action="store_true", help="tokens/s, with and without a kernel")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.only or ()) - set(METHODS)):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(METHODS)}")
    if not 2 <= arguments.tokens <= TOKENS:
        parser.error(f"--tokens is {arguments.tokens}; allowed are 2 to {TOKENS}")
    wanted = {"float32", *(arguments.only or METHODS)}
    arguments.only = [name for name in METHODS if name in wanted]
    return arguments


def print_head(about: dict[str, object]) -> None:
    """What is measured, on what, where and when."""
    print(f"Text: the first {about['tokens']:,} tokens of data/corpus.txt, in one window.")
    print(f"Weights: {about['weights']}")
    if ".gguf" in str(about["weights"]):
        print(SOURCE_GRID)
    print(f"Calibration of GPTQ and AWQ: {about['calibration']}")
    print_machine()
    print("bits: per weight of the linear layers, with scales; cache: per number in the KV cache.")
    print("bytes: of all weights. The embedding, which is the head too, is float32 unless said.")
    print("Of the cache all that is read is rounded, but for the last, unfinished 32 tokens.")
    print("KL: from full precision to the method, mean over the text, in nats.")
    print("same top: how often both have the same most likely token.\n")
    heads = f"{'bits':>6} {'cache':>6} {'bytes':>12} {'perplexity':>11} {'KL':>8} {'same top':>9}"
    print(f"{'name':<18}{'method':<{WIDTH}} {heads}")


def print_machine() -> None:
    """Where and when."""
    here = machine()
    print(f"Machine: {here['cpu']}, {here['threads']} threads, torch {here['torch']}", end="; ")
    print(f"{date.today()}\n")


def print_row(row: Quality) -> None:
    """One method."""
    print(
        f"{row.name:<18}{row.title:<{WIDTH}} {row.bits:>6.2f} {row.cache_bits:>6.2f} "
        f"{row.model_bytes:>12,} {row.perplexity:>11.3f} {row.kl:>8.4f} {row.same_top:>9.3f}",
        flush=True,
    )


def print_claims(rows: dict[str, Quality]) -> bool:
    """The orderings, and whether all hold."""
    found = list(claims(rows))
    print()
    for claim in found:
        verdict = "PASS" if claim.holds else "FAIL"
        print(f"{verdict}  {claim.text}: {claim.value:.4f}, must be below {claim.limit:.4g}")
    return all(claim.holds for claim in found)


def print_speeds(llm: LLM, names: list[str]) -> None:
    """Decode and prefill of each method, in plain PyTorch and with the kernel that reads it."""
    print(f"Tokens/s: decode after a prompt of {PROMPT}, prefill of {LONG_PROMPT} tokens.")
    print(NOTE)
    print_machine()
    found = {row.name: row for row in speeds(llm, dict.fromkeys(ALIKE.get(n, n) for n in names))}
    print(f"{'name':<18}{'method':<{WIDTH}}{'decode':>9}{'kernel':>9}{'prefill':>9}{'kernel':>9}")
    for name in names:
        row = found[ALIKE.get(name, name)]
        print(f"{name:<18}{METHODS[name].title:<{WIDTH}}{columns(asdict(row))}  {row.kernel}")


def peak_memory() -> str:
    """The most memory that this process had at any time."""
    if on_linux := high_water_bytes(os.getpid()):  # getrusage begins with what the parent had
        return f"{on_linux / 1e9:.2f} GB"
    try:
        import resource
    except ImportError:  # Windows
        return "not known on this system"
    unit = 1 if sys.platform == "darwin" else 1024
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9:.2f} GB"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (FileNotFoundError, ValueError) as error:
        sys.exit(f"quality: error: {error}")
