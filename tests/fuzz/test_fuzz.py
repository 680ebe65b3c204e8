"""Damaged models: each one works as its files say, or is refused by a clear error, quickly.

MINILLM_FUZZ_N is the number of mutations, drawn anew each time; without it 300 are made, always
the same. MINILLM_FUZZ_SEED repeats an earlier run. MINILLM_FUZZ_BASES="packed*" damages only models
of such names.
"""

import json
import os
import secrets
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fuzz.worker import build, mutation

ROOT = Path(__file__).resolve().parents[2]
PER_WORKER = 500
WORKERS = min(os.cpu_count() or 1, 4)
MOST_FAULTS = 40
ONLY = os.environ.get("MINILLM_FUZZ_BASES", "*")


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


def run(seed, numbers, bases, faults):
    """Run these mutations in one worker after another, until each has an outcome."""
    results: list[dict] = []
    while len(results) < len(numbers) and len(faults) < MOST_FAULTS:
        left = numbers[len(results) :]
        found, errors = work(seed, left[0], len(left), bases)
        if "outcome" not in found[-1]:
            tail = " | ".join(errors.splitlines()[-6:])
            found[-1] |= {"outcome": "fault", "how": f"the process died or hung: {tail}"}
        results += found
        for result in found:
            if result["outcome"] == "fault":
                again = f"python -m tests.fuzz.worker {seed} {result['number']} --only '{ONLY}'"
                again += " --keep /tmp/damaged"
                faults.append(f"{result['what']}\n  {result['how']}\n  again: {again}")
                print(faults[-1], flush=True)
    return results


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    root = tmp_path_factory.mktemp("fuzz") / "bases"
    build(root, ONLY)
    return root


@pytest.mark.slow
def test_damaged_models_are_refused(bases, record_property):
    asked = os.environ.get("MINILLM_FUZZ_N")
    total = int(asked or 300)
    seed = os.environ.get("MINILLM_FUZZ_SEED") or (secrets.token_hex(4) if asked else "suite")
    print(f"\nMINILLM_FUZZ_SEED={seed}, {total} mutations")
    faults: list[str] = []
    share = min(PER_WORKER, -(-total // WORKERS))
    parts = [range(first, min(first + share, total)) for first in range(0, total, share)]
    with ThreadPoolExecutor(WORKERS) as pool:
        done = pool.map(lambda numbers: run(seed, numbers, bases, faults), parts)
        results = [result for part in done for result in part]
    for line in table(results):
        print(line)
    count = Counter(result["outcome"] for result in results)
    slowest = max(result.get("cpu_s", 0) for result in results)
    largest = max(result.get("memory", 0) for result in results) / 1e6
    record_property(
        "figure",
        f"fuzz: seed {seed}, {len(results)} damaged models: {count['refused']} refused, "
        f"{count['works']} work as their files say, {count['fault']} faults; at most "
        f"{slowest:.2f} s of CPU time and {largest:.0f} MB",
    )
    assert not faults, "\n".join(faults)


def table(results):
    """Outcomes by kind of damage, and why what works counts as valid."""
    by_kind: dict[str, Counter] = {}
    for result in results:
        for kind in result["kinds"]:
            by_kind.setdefault(kind, Counter())[result["outcome"]] += 1
    yield f"{'':<20}{'refused':>9}{'works':>9}{'fault':>9}"
    for kind, count in sorted(by_kind.items()):
        yield f"{kind:<20}" + "".join(f"{count[key]:>9}" for key in ("refused", "works", "fault"))
    works = [result["how"] for result in results if result["outcome"] == "works"]
    for reason, number in Counter(part for how in works for part in how.split("; ")).most_common():
        yield f"{number:>6} work: {reason}"


def test_the_same_seed_makes_the_same_damage(bases, tmp_path):
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
