"""From the start of a process to the first token, minillm's and llama.cpp's in turn."""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minillm.bench.cold import SCRIPT, process_parts
from tools.peers.report import Verdict
from tools.peers.rounds import LLAMA, OURS

Parts = Mapping[str, float]


def cold_starts(
    model: Path,
    file: Path,
    peers: str,
    ids: Sequence[int],
    *,
    backend: str,
    threads: int,
    rounds: int,
) -> dict[str, dict[str, float]]:
    """Parts of a cold start by engine, in seconds, medians; the files are in the system's cache."""
    asked: dict[str, Any] = {"prompt_ids": list(ids), "threads": threads}
    options = {"device": "cpu", "backend": backend}
    ours = json.dumps(asked | {"model": str(model), "options": options})
    theirs = json.dumps(asked | {"model": str(file)})
    commands = {
        OURS: [sys.executable, "-P", str(SCRIPT), ours],
        LLAMA: [peers, "-P", str(Path(__file__).with_name("llama_first_token.py")), theirs],
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for number in range(1 + rounds):
        for name, command in commands.items():
            parts = process_parts(command)
            if number:
                found[name].append(parts)
    return {
        name: {part: statistics.median(run[part] for run in runs) for part in runs[0]}
        for name, runs in found.items()
    }


def cold_table(found: Mapping[str, Parts]) -> str:
    """Markdown: milliseconds of each part, an engine in each row."""
    rows = ["| engine | parts, ms | total, ms |", "| --- | --- | --- |"]
    for name, parts in found.items():
        text = ", ".join(f"{part} {s * 1e3:.0f}" for part, s in parts.items() if part != "total")
        rows.append(f"| {name} | {text} | {parts['total'] * 1e3:.0f} |")
    return "\n".join(rows)


def cold_verdict(found: Mapping[str, Parts]) -> Verdict:
    """Ours may take as long as theirs and the import of torch together."""
    ours, theirs = found[OURS], found[LLAMA]
    allowed = theirs["total"] + ours["import torch"]
    text = "cold start: llama.cpp's and the import of torch, over minillm's"
    return Verdict(text, allowed / ours["total"], 1.0)
