"""Measure minillm beside llama.cpp and transformers: same weights, prompts, threads and machine.

    python tools/bench_peers.py                            # all, into docs/benchmarks.md
    python tools/bench_peers.py --only decode batches --rounds 3   # a part, and nothing is written
    python tools/bench_peers.py --python ~/llama/bin/python

llama-cpp-python is compiled into build/peers-venv at the first call, which takes minutes and needs
a C++ compiler; --python names a Python that has it already. Each engine lives in its own process
and they take turns, round by round. minillm and llama.cpp run on the blocks of the GGUF file,
transformers on the float32 folder that was converted from it.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that `tools` and `tests` can be imported

import torch  # noqa: E402

from minillm import LLM  # noqa: E402
from minillm.bench import ceilings, machine  # noqa: E402
from minillm.weights.pull import resolve  # noqa: E402
from minillm.weights.source import open_source  # noqa: E402
from tools.peers import cold, environment, rounds, scores, targets  # noqa: E402
from tools.peers.report import Part, Section, replace_between, summary  # noqa: E402
from tools.peers.rounds import LLAMA, OURS, TRANSFORMERS, Plan  # noqa: E402
from tools.peers.worker import Worker  # noqa: E402

DOCUMENT, README = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
TABLES = {
    "decode": Section("Decode, API against API", rounds.decode_by_api, targets.api),
    "steps": Section("Decode, step against step", rounds.bare_steps, targets.step),
    "prefill": Section("Prefill", rounds.prefills, targets.prefill),
    "growth": Section("A step at a long context", rounds.growth, targets.growth, rates=False),
    "batches": Section("A batch of 8 against 1", rounds.batches, targets.batch),
}
NAMES = (*TABLES, "cold", "scores")
# The lines of the README's table, by what they are called in their sections.
IN_BRIEF = {
    "text as it comes": "decode, text as it comes",
    "step at 128 tokens": "decode, a step alone",
    "16-bit cache, 4,096 tokens": "a step after 4,096 tokens, cache of 16 bits",
    "batch of 8": "steps of 8 rows",
    "prompt of 1,000": "prefill of 1,000 tokens",
}


class Setting(NamedTuple):
    """folder, file: the model and the GGUF file that it was made from. peers: a Python."""

    folder: Path
    file: Path
    peers: str
    plan: Plan


def main() -> int:
    """Measure, print as it comes, and write the document; 1 where a target is missed."""
    options = parse()
    setting = prepare(options)
    parts = [Part(about(options))]
    print(parts[0].text, flush=True)
    for part in measured(options, setting):
        print(f"\n{part.text}", flush=True)
        parts.append(part)
    verdicts = [verdict for part in parts for verdict in part.verdicts]
    parts.append(Part("### Targets\n\n" + "\n".join(f"- {verdict}" for verdict in verdicts)))
    print(f"\n{parts[-1].text}")
    if options.write and set(options.only) == set(NAMES):
        write(parts)
    elif options.write:
        print("\nnothing is written: a part of the measurements was left out", file=sys.stderr)
    return 0 if all(v.holds for v in verdicts) else 1


def write(parts: Sequence[Part]) -> None:
    """Put all into docs/benchmarks.md, and a summary into the README."""
    replace_between(DOCUMENT, "peers", "\n\n".join(part.text for part in parts))
    print(f"\nwritten: {DOCUMENT.relative_to(ROOT)}", file=sys.stderr)
    engines = dict.fromkeys(name for part in parts for x in part.lines for name in x.seconds)
    if brief := summary(parts, list(engines), IN_BRIEF):
        replace_between(README, "benchmarks", f"{parts[0].text}\n\n{brief}")
        print(f"written: {README.relative_to(ROOT)}", file=sys.stderr)


def prepare(options: argparse.Namespace) -> Setting:
    """Find the model, the peers' Python and the text.

    Raises ValueError where it is not clear which GGUF file both minillm and llama.cpp are to run.
    """
    folder = resolve(options.model)
    source = open_source(folder)
    if source.gguf is None or source.gguf == folder:
        raise ValueError(f"{folder}: a folder with exactly one .gguf file in it is needed")
    text = (ROOT / "data" / "corpus.txt").read_text(encoding="utf-8")
    ids = source.tokenizer.encode(text)
    ids *= -(-rounds.LONGEST // len(ids))  # the text again, where it is too short
    peers = environment.peers_python(options.python)
    return Setting(folder, source.gguf, peers, Plan(ids, options.rounds))


def measured(options: argparse.Namespace, setting: Setting) -> Iterator[Part]:
    """Every section that was asked for: as Markdown, and what is to be said of its targets."""
    if wanted := [name for name in TABLES if name in options.only]:
        with ExitStack() as stack:
            workers = open_workers(stack, options, setting)
            yield Part("\n".join(f"- {w.name}: {w.about['engine']}" for w in workers.values()))
            for name in wanted:
                yield TABLES[name].run(workers, setting.plan)
    if "cold" in options.only:
        yield cold_section(options, setting)
    if "scores" in options.only:
        yield scores_section(options, setting)


def cold_section(options: argparse.Namespace, setting: Setting) -> Part:
    """From process start to first token."""
    folder, file, peers, plan = setting
    found = cold.cold_starts(
        folder,
        file,
        peers,
        plan.ids[:42],
        backend=options.backend,
        threads=options.threads,
        rounds=plan.rounds,
    )
    text = f"### From process start to first token\n\n{cold.cold_table(found)}"
    return Part(text, [cold.cold_verdict(found)])


def scores_section(options: argparse.Namespace, setting: Setting) -> Part:
    """The engine's scores beside PyTorch's."""
    fast, reference, exact = (
        LLM.from_pretrained(
            setting.folder, device="cpu", dtype="float32", backend=backend, quantize=form
        )
        for backend, form in ((options.backend, "gguf"), ("torch", "gguf"), ("torch", None))
    )
    found = scores.compare(fast, reference, exact, setting.plan.ids[: scores.TOKENS])
    return Part(f"### Scores\n\n{scores.scores_text(found)}", scores.scores_verdicts(found))


def open_workers(
    stack: ExitStack, options: argparse.Namespace, setting: Setting
) -> dict[str, Worker]:
    """Every engine that is here, in a process of its own."""
    folder, file, peers, _ = setting
    given: dict[str, tuple[str, str, dict[str, Any]]] = {
        OURS: (
            sys.executable,
            "tools.peers.minillm_worker",
            {"model": str(folder), "backend": options.backend},
        ),
        LLAMA: (peers, "tools.peers.llama_worker", {"model": str(file)}),
    }
    if python := environment.transformers_python(peers):
        given[TRANSFORMERS] = (python, "tools.peers.transformers_worker", {"model": str(folder)})
    else:
        print("transformers is not installed, and left out", file=sys.stderr)
    return {
        name: stack.enter_context(Worker(name, python, module, options.threads, **more))
        for name, (python, module, more) in given.items()
    }


def about(options: argparse.Namespace) -> str:
    """What the figures belong to."""
    here, possible = machine(), ceilings()
    return (
        f"Measured on {date.today()} with {options.threads} threads of {here['cpu']} "
        f"({here['cores']} cores, {here['system']}; reads {possible.bytes_per_s / 1e9:.1f} GB/s, "
        f"multiplies {possible.flops_per_s / 1e9:.0f} GFLOP/s in float32), "
        f"torch {here['torch']}, Python {here['python']}. Medians of {options.rounds} rounds."
    )


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description="minillm beside llama.cpp and transformers.")
    add = parser.add_argument
    add("--only", nargs="+", choices=NAMES, default=NAMES, help="these sections (default: all)")
    add("--model", default="smollm2", help="a folder with its GGUF file (default: smollm2)")
    add("--python", help="a Python that has llama-cpp-python (default: one is made)")
    add("--backend", default="auto", help="minillm's, as of LLM.from_pretrained (default: auto)")
    add("--threads", type=int, default=torch.get_num_threads(), help="of every engine")
    add("--rounds", type=int, default=5, help="that count (default: 5)")
    add("--no-write", dest="write", action="store_false", help="leave docs/benchmarks.md alone")
    options = parser.parse_args()
    for name in ("threads", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; at least 1 is needed")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"bench_peers: error: {error}")
