"""Damaged model folders: each one works, or is refused by a clear error, quickly and cheaply.

MINILLM_FUZZ_N is the number of mutations (300), MINILLM_FUZZ_SEED repeats an earlier run.
"""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import folders

ROOT = Path(__file__).resolve().parents[2]
PER_WORKER = 1_000


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
    faults: list[dict] = []
    number = 0
    while number < total and len(faults) < 20:
        found, errors = work(seed, number, min(PER_WORKER, total - number), bases)
        if "outcome" not in found[-1]:
            tail = " | ".join(errors.split("\n")[-6:])
            found[-1] |= {"outcome": "fault", "how": f"the process died or hung: {tail}"}
            found[-1] |= {"cpu_s": 0.0, "memory": 0}
        results += found
        faults += [result for result in found if result["outcome"] == "fault"]
        number = found[-1]["number"] + 1
        print(f"{number} done, {len(faults)} faults", flush=True)
    works = sum(result["outcome"] == "works" for result in results)
    refused = sum(result["outcome"] == "refused" for result in results)
    slowest = max(result["cpu_s"] for result in results)
    largest = max(result["memory"] for result in results)
    figure = (
        f"fuzz: seed {seed}, {len(results)} damaged folders: {refused} refused, {works} still "
        f"work, {len(faults)} faults; at most {slowest:.2f} s of CPU time, {largest / 1e6:.0f} MB"
    )
    record_property("figure", figure)
    print(figure)
    assert not faults, "\n".join(
        f"{fault['what']}\n  {fault['how']}\n"
        f"  again: python -m tests.fuzz.worker {seed} {fault['number']} --keep /tmp/damaged"
        for fault in faults
    )
    assert works + refused == total


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
