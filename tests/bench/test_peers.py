"""`make bench-peers` without its peers: rounds, ratios, targets, workers and the document."""

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from minillm import SamplingParams
from tools.bench_peers import DOCUMENT, IN_BRIEF, README, prepare
from tools.peers import cold, environment, rounds, scores, targets
from tools.peers.report import Line, Section, Verdict, replace_between, summary, table
from tools.peers.worker import Worker

OURS, LLAMA, TRANSFORMERS = rounds.OURS, rounds.LLAMA, rounds.TRANSFORMERS


class Fake:
    """A worker whose every time is known; `log` is shared by all of them."""

    def __init__(self, name: str, seconds: float, log: list[tuple[str, str]]) -> None:
        self.name, self.seconds, self.log = name, seconds, log
        self.rows, self.kv = 0, None
        self.contexts: dict[str, int] = {}
        self.stepped: list[str] = []

    def ask(self, job: str, **arguments: Any) -> Any:
        self.log.append((self.name, job))
        if job == "prepare":
            self.rows, self.kv = len(arguments["prompts"]), arguments["kv"]
            self.contexts[arguments["name"]] = len(arguments["prompts"][0])
        if job == "steps":
            self.stepped.append(arguments["name"])
            return [self.seconds * (1 + self.contexts[arguments["name"]] / 4096)] * 3
        if job == "stream":
            return [self.seconds] * 3
        return self.seconds


def fakes():
    log: list[tuple[str, str]] = []
    times = {OURS: 0.01, LLAMA: 0.02, TRANSFORMERS: 0.05}
    return {name: Fake(name, s, log) for name, s in times.items()}, log


PLAN = rounds.Plan(list(range(5_000)), rounds=2)


def test_engines_take_turns_and_the_first_round_does_not_count():
    workers, log = fakes()
    found = rounds.alternate(workers, 2, lambda name, w: float(w.ask("prefill", ids=[1])))
    assert [name for name, _ in log] == [OURS, LLAMA, TRANSFORMERS] * 3
    assert found == {OURS: [0.01] * 2, LLAMA: [0.02] * 2, TRANSFORMERS: [0.05] * 2}


def test_every_section_measures_and_judges():
    workers, log = fakes()
    sections = [
        Section("a", rounds.decode_by_api, targets.api),
        Section("b", rounds.bare_steps, targets.step),
        Section("c", rounds.prefills, targets.prefill),
        Section("d", rounds.growth, targets.growth, rates=False),
        Section("e", rounds.batches, targets.batch),
    ]
    verdicts, parts = [], []
    for section in sections:
        part = section.run(workers, PLAN)
        assert part.text.startswith(f"### {section.title}\n\n| ")
        verdicts += part.verdicts
        parts.append(part)
    brief = summary(parts, [OURS, LLAMA, TRANSFORMERS], IN_BRIEF)
    assert brief is not None
    assert brief.splitlines()[2].startswith("| decode, text as it comes | 100 | 50 | – | 2.00 |")
    assert summary(parts[1:], [OURS], IN_BRIEF) is None
    values = [round(v.value, 3) for v in verdicts]
    # Twice as fast as llama.cpp all along; a step at 4,096 tokens takes 2 / (1 + 1/32) as long.
    assert values == [2, 2, 2, 2, 1.939, 1.939, 8, 2]
    assert [v.holds for v in verdicts] == [True] * 5 + [False, True, True]
    assert (TRANSFORMERS, "stream") not in log
    prepared = [name for name, job in log if job == "prepare"]
    assert len(prepared) == len([1 for _, job in log if job == "forget"]) == 3 + 8 + 6


def test_contexts_take_turns_within_a_round():
    """Else a minute in which the machine is slow would be in one of them only."""
    workers, log = fakes()
    rounds.growth(workers, PLAN)
    assert workers[OURS].stepped == list(workers[OURS].contexts) * 3
    assert list(workers[OURS].contexts.values()) == [128, 4096] * 2
    steps = [name for name, job in log if job == "steps"]
    assert steps == ([OURS] * 4 + [LLAMA] * 4) * 3


def test_kinds_of_caches_by_each_engines_name():
    workers, _ = fakes()
    both = {name: workers[name] for name in (OURS, LLAMA)}
    rounds.steps(both, PLAN, [rounds.Context(128, rows=8, kind="8-bit")])
    assert (workers[OURS].kv, workers[LLAMA].kv) == ("int8", "q8_0")
    assert workers[OURS].rows == 8


def test_a_ratio_is_the_median_of_the_rounds():
    """A machine that gets slower with each round; always twice as fast but once."""
    line = Line("x", {"a": [1.0, 2.0, 3.0], "b": [2.0, 8.0, 6.0]}, count=10)
    assert line.times_as_fast("a", "b") == 2
    assert line.median("b") / line.median("a") == 3
    assert line.rate("a") == 5


def test_the_table_has_a_dash_for_what_was_not_measured():
    lines = [Line("x", {"a": [0.5], "b": [1.0]}, 8), Line("y", {"a": [0.25]}, 1)]
    assert table(lines, ["a", "b"]).splitlines() == [
        "|  | a, tokens/s | b, tokens/s | × b |",
        "| --- | --- | --- | --- |",
        "| x | 16 | 8 | 2.00 |",
        "| y | 4 | – | – |",
    ]
    assert "| x | 500.00 | 1000.00 | 2.00 |" in table(lines, ["a", "b"], rates=False)


def test_verdicts_say_what_they_are_measured_by():
    assert str(Verdict("speed", 1.4, 1.5)) == "speed: 1.4 (target: at least 1.5; missed)"
    assert Verdict("speed", 1.5, 1.5).holds
    assert str(Verdict("gap", 0.1, 0.5, at_most=True)).endswith("(target: at most 0.5; met)")
    assert not Verdict("gap", float("nan"), 0.5, at_most=True).holds


def test_a_cold_start_may_take_the_import_of_torch_longer():
    found = {OURS: {"import torch": 0.9, "total": 1.2}, LLAMA: {"total": 0.4}}
    assert cold.cold_verdict(found).value == pytest.approx(1.3 / 1.2)
    assert cold.cold_verdict(found).holds
    assert "| minillm | import torch 900 | 1200 |" in cold.cold_table(found)


def test_cold_starts_have_the_same_threads_and_take_turns(monkeypatch):
    asked: list[dict[str, Any]] = []

    def parts(command):
        asked.append(json.loads(command[-1]))
        return {"load": float(len(asked)), "total": 1.0}

    monkeypatch.setattr(cold, "process_parts", parts)
    options: dict[str, Any] = {"backend": "cpu", "threads": 3, "rounds": 2}
    found = cold.cold_starts(Path("folder"), Path("file"), sys.executable, [1, 2], **options)
    assert [(x["model"], x["threads"]) for x in asked] == [("folder", 3), ("file", 3)] * 3
    assert [found[name]["load"] for name in (OURS, LLAMA)] == [4, 5]  # the first round is not one


def test_only_the_marked_part_of_the_document_changes(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- peers: begin -->\nold\n<!-- peers: end -->\nafter\n")
    for text in ("new \\1", "newer"):
        replace_between(path, "peers", text)
        expected = f"before\n<!-- peers: begin -->\n{text}\n<!-- peers: end -->\nafter\n"
        assert path.read_text() == expected
    with pytest.raises(ValueError, match="gpu: begin"):
        replace_between(path, "gpu", "x")
    assert [p.name for p in tmp_path.iterdir()] == ["page.md"]


def test_the_document_has_the_marks():
    for path, name in ((DOCUMENT, "peers"), (README, "benchmarks")):
        text = path.read_text(encoding="utf-8")
        assert text.count(f"<!-- {name}: begin -->") == text.count(f"<!-- {name}: end -->") == 1


def test_a_worker_answers_and_says_what_went_wrong(tmp_path, monkeypatch):
    """The real protocol, with a model that only counts; what it prints does not disturb it."""
    (tmp_path / "counting.py").write_text(
        "import os\n"
        "from tools.peers.worker import serve\n"
        "def load(threads, start):\n"
        "    print('noise')\n"
        "    return {'threads': os.environ['OMP_NUM_THREADS'], 'start': start}\n"
        "def fail(): raise KeyError('why')\n"
        "def leave(): os._exit(3)\n"
        "serve({'load': load, 'fail': fail, 'leave': leave, 'add': lambda a, b: a + b})\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Worker("counting", sys.executable, "counting", 3, start=5) as worker:
        assert worker.about == {"threads": "3", "start": 5}
        assert worker.ask("add", a=[1], b=[2]) == [1, 2]
        with pytest.raises(RuntimeError, match="counting, 'fail': KeyError: 'why'"):
            worker.ask("fail")
        assert worker.ask("add", a=1, b=2) == 3
        with pytest.raises(RuntimeError, match="counting ended at 'leave', exit code 3"):
            worker.ask("leave")


def test_a_python_without_llama_cpp_is_refused(tmp_path):
    assert environment.has(sys.executable, "torch", "json")
    assert not environment.has(sys.executable, "no_such_module")
    assert not environment.has(str(tmp_path / "python"), "json")
    with pytest.raises(ValueError, match="no Python that has llama-cpp-python"):
        environment.peers_python(str(tmp_path / "python"))


def test_all_run_the_one_gguf_file_of_the_folder(smollm2, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "peers_python", lambda asked: sys.executable)
    shutil.copy(smollm2 / "tokenizer.json", tmp_path)
    one, other = tmp_path / "one.gguf", tmp_path / "a.gguf"
    options = argparse.Namespace(model=str(tmp_path), python=None, rounds=2)
    with pytest.raises(ValueError, match=r"exactly one \.gguf file in it is needed"):
        prepare(options)
    one.touch()
    setting = prepare(options)
    assert (setting.folder, setting.file) == (tmp_path, one)
    assert len(setting.plan.ids) >= rounds.LONGEST
    other.touch()  # minillm would run neither of two
    with pytest.raises(ValueError, match=r"exactly one \.gguf file in it is needed"):
        prepare(options)


def test_minillms_worker_steps_on_from_where_it_was_prepared(smollm2):
    options = {"model": str(smollm2), "backend": "torch"}
    with Worker(OURS, sys.executable, "tools.peers.minillm_worker", 1, **options) as worker:
        assert worker.about["threads"] == 1
        for kv in (None, "int8"):
            prompts = [[1, 2, 3]] * 2
            assert worker.ask("prepare", name="x", prompts=prompts, kv=kv, steps=2) > 0
            for _ in range(2):  # a second run starts over, or the cache would be full
                times = worker.ask("steps", name="x", ids=[5, 6])
                assert len(times) == 2
                assert min(times) > 0
            worker.ask("forget", name="x")
        assert worker.ask("prefill", ids=[1, 2, 3]) > 0
        assert len(worker.ask("stream", ids=[1, 2, 3], new_tokens=3)) == 2
        assert statistics.fmean([worker.ask("whole", ids=[1, 2, 3], new_tokens=3)]) > 0


@pytest.fixture
def _short_texts(monkeypatch):
    for name, number in (("PROMPTS", 3), ("PROMPT", 8), ("GREEDY", 4)):
        monkeypatch.setattr(scores, name, number)


@pytest.mark.usefixtures("_short_texts")
def test_scores_of_a_model_beside_itself_are_equal(llm):
    ids = llm.tokenizer.encode("The sea is wide, and the river finds it in the end. " * 3)
    found = scores.compare(llm, llm, llm, ids)
    assert found.rms == 0
    assert 0 < found.own_rms < 1e-2
    assert found.partings == []
    assert found.perplexity == found.in_float32
    assert all(v.holds for v in scores.scores_verdicts(found))
    assert scores.compare(llm, llm, llm, ids) == found  # what was shaken is as it was
    assert "3 are float32's to the end" in scores.scores_text(found)


@pytest.mark.usefixtures("_short_texts")
def test_where_texts_part_the_gap_is_that_of_float32(llm):
    class Other:
        """Says token 7 in the place of the third one of the second text."""

        def generate(self, prompts, params):
            found = llm.generate(prompts, params)
            found[1].token_ids[2] = 7
            return found

    ids = llm.tokenizer.encode("The sea is wide, and the river finds it in the end. " * 3)
    (parting,) = scores.parted(Other(), llm, ids)  # type: ignore[arg-type]
    assert (parting.prompt, parting.place) == (1, 2)
    prompt = list(ids[8:16])
    answer = llm.generate(prompt, SamplingParams(max_new_tokens=3)).token_ids
    row = llm.logits(prompt + answer[:2])[-1]
    assert parting.gap == pytest.approx(float(row[answer[2]] - row[7]), rel=1e-4)
    assert parting.gap > 0
