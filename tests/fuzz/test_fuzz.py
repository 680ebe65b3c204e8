"""Damaged model folders: each one works, or is refused by a clear error, quickly and cheaply.

MINILLM_FUZZ_N is the number of mutations (300), MINILLM_FUZZ_SEED repeats an earlier run.
"""

import json
import os
import secrets
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz import folders

ROOT = Path(__file__).resolve().parents[2]
PER_WORKER = 1_000
MOST_FAULTS = 20


def work(seed, number, count, bases):
    """Run some mutations in one worker: their results, the last one without an outcome if it died.

    Also returns what the worker wrote to stderr.
    """
    command = [sys.executable, "-m", "tests.fuzz.worker", seed, str(number), str(count)]
    done = subprocess.run(
        [*command, "--bases", str(bases)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        errors="replace",
    )
    results = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            results[found["number"]] = found
    assert results, f"the worker did not start: {done.stderr}"
    return [results[key] for key in sorted(results)], done.stderr


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    root = tmp_path_factory.mktemp("fuzz") / "bases"
    folders.build(root)
    return root


def test_damaged_folders_are_refused(bases, record_property):
    seed = os.environ.get("MINILLM_FUZZ_SEED") or secrets.token_hex(4)
    total = int(os.environ.get("MINILLM_FUZZ_N") or 300)
    print(f"\nMINILLM_FUZZ_SEED={seed}, {total} mutations")
    results: list[dict] = []
    faults: list[str] = []
    while len(results) < total and len(faults) < MOST_FAULTS:
        start = len(results)
        found, errors = work(seed, start, min(PER_WORKER, total - start), bases)
        if "outcome" not in found[-1]:
            tail = " | ".join(errors.splitlines()[-6:])
            found[-1] |= {"outcome": "fault", "how": f"the process died or hung: {tail}"}
        results += found
        for result in found:
            if result["outcome"] == "fault":
                again = f"python -m tests.fuzz.worker {seed} {result['number']} --keep /tmp/damaged"
                faults.append(f"{result['what']}\n  {result['how']}\n  again: {again}")
                print(faults[-1])
        print(f"{len(results)} done, {len(faults)} faults", flush=True)
    count = Counter(result["outcome"] for result in results)
    slowest = max(result.get("cpu_s", 0) for result in results)
    largest = max(result.get("memory", 0) for result in results) / 1e6
    record_property(
        "figure",
        f"fuzz: seed {seed}, {len(results)} damaged folders: {count['refused']} refused, "
        f"{count['works']} still work, {count['fault']} faults; at most {slowest:.2f} s of CPU "
        f"time and {largest:.0f} MB",
    )
    assert not faults, "\n".join(faults)


def test_the_same_seed_makes_the_same_damage(bases, tmp_path):
    from tests.fuzz.worker import mutation

    for number in range(40):
        first = mutation("seed", number, bases, tmp_path / "model")
        kept = contents(tmp_path / "model")
        assert mutation("seed", number, bases, tmp_path / "model") == first
        assert contents(tmp_path / "model") == kept


def contents(folder):
    return {
        path.name: path.read_bytes() if path.is_file() else path.is_dir()
        for path in sorted(folder.iterdir())
    }
