"""From the start of a process to the first token of an answer, part by part."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minillm.bench.counts import at_least

SCRIPT = Path(__file__).with_name("first_token.py")
PACKAGES = Path(__file__).parents[2]


def cold_start(
    model: str, options: Mapping[str, Any], prompt_ids: Sequence[int], runs: int = 3
) -> dict[str, float]:
    """Seconds of each part, in the order that they happen, and "total"; medians over the runs.

    interpreter: from the start of the process to the first line of Python. import torch, import
    minillm: what each costs after the one before. load: `LLM.from_pretrained`. first token: the
    prefill of prompt_ids and one token, with whatever is done on first use.

    options: of `from_pretrained`, whatever JSON can hold. Each run is a new process; one before
    them brings the files into the system's cache and does not count.
    Raises ValueError for fewer runs than 1, and RuntimeError where the process fails.
    """
    at_least(1, runs=runs)
    asked = {"model": str(model), "options": dict(options), "prompt_ids": list(prompt_ids)}
    command = [sys.executable, "-P", str(SCRIPT), json.dumps(asked)]
    found = [process_parts(command) for _ in range(1 + runs)][1:]
    return {name: statistics.median(parts[name] for parts in found) for name in found[0]}


def process_parts(command: Sequence[str]) -> dict[str, float]:
    """Seconds between the marks of one process, and "total".

    Its last line of output is {name: seconds since the epoch}, in the order that they passed; a
    name's part lasts from the mark before it. What lies beside a script is not imported with -P, so
    this package's folder is on its path. Python keeps what it compiles, whatever the environment
    says: packages that pip has installed are compiled already, and so are those measured beside.
    Raises RuntimeError where the process fails.
    """
    path = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")]))
    kept = {key: x for key, x in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    begin = time.time()
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        env=kept | {"PYTHONPATH": path},
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"the measured process failed: {reason}")
    reached: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    before = [begin, *reached.values()]
    parts = {name: at - last for (name, at), last in zip(reached.items(), before, strict=False)}
    return parts | {"total": before[-1] - begin}
