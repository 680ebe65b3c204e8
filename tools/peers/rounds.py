"""What is measured, in rounds: every engine once, then every engine again.

Each function takes the workers by name and returns lines for a table. `Asker` is what they need of
a worker, so that tests can do without processes.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from tools.peers.report import Line

OURS, LLAMA, TRANSFORMERS = "minillm", "llama.cpp", "transformers"
# The same cache, as each engine calls it.
KINDS = {
    "16-bit": {OURS: "bfloat16", LLAMA: "f16"},
    "8-bit": {OURS: "int8", LLAMA: "q8_0"},
}
STEPS = 24
LONGEST = 4096 + STEPS  # tokens that the plan's text must have


class Asker(Protocol):
    """A worker, as far as it is asked."""

    def ask(self, job: str, **arguments: Any) -> Any:
        """The result of one job."""


Workers = Mapping[str, Asker]
Seconds = dict[str, list[float]]  # by engine, a value for each round


@dataclass(frozen=True, slots=True)
class Plan:
    """ids: token ids of a text, as many as any prompt needs. rounds: that count."""

    ids: list[int]
    rounds: int = 5


Found = TypeVar("Found")


def alternate(
    workers: Workers, rounds: int, work: Callable[[str, Asker], Found]
) -> dict[str, list[Found]]:
    """One value per engine and round, the engines in turn; a round that warms up does not count."""
    found: dict[str, list[Found]] = {name: [] for name in workers}
    for number in range(1 + rounds):
        for name, worker in workers.items():
            value = work(name, worker)
            if number:
                found[name].append(value)
    return found


def decode_by_api(workers: Workers, plan: Plan) -> list[Line]:
    """Tokens as a caller gets them, at 128 tokens of context on average."""
    ids, new_tokens = plan.ids[:112], 32
    both = {name: workers[name] for name in (OURS, LLAMA)}

    def stream(_: str, worker: Asker) -> float:
        return statistics.fmean(worker.ask("stream", ids=ids, new_tokens=new_tokens))

    def whole(_: str, worker: Asker) -> float:
        return float(worker.ask("whole", ids=ids, new_tokens=new_tokens))

    return [
        Line("text as it comes", alternate(both, plan.rounds, stream)),
        Line("text all at once", alternate(workers, plan.rounds, whole)),
    ]


class Context(NamedTuple):
    """What steps go on from: rows of so many tokens in a cache of one kind (None: the usual)."""

    tokens: int
    rows: int = 1
    kind: str | None = None


def steps(workers: Workers, plan: Plan, contexts: Sequence[Context]) -> list[Seconds]:
    """For each context the seconds of a bare step: the median of `STEPS` steps, for each round.

    In each round an engine goes through all contexts: a minute in which the machine is slow is in
    all of them, and not in their ratios.
    """
    names = [f"bench {number}" for number in range(len(contexts))]
    for name, context in zip(names, contexts, strict=True):
        prompts = [plan.ids[: context.tokens]] * context.rows
        for engine, worker in workers.items():
            kv = KINDS[context.kind].get(engine) if context.kind else None
            worker.ask("prepare", name=name, prompts=prompts, kv=kv, steps=STEPS)

    def step(_: str, worker: Asker) -> list[float]:
        following = (plan.ids[context.tokens :][:STEPS] for context in contexts)
        asked = zip(names, following, strict=True)
        return [float(statistics.median(worker.ask("steps", name=n, ids=ids))) for n, ids in asked]

    found = alternate(workers, plan.rounds, step)
    for worker in workers.values():
        for name in names:
            worker.ask("forget", name=name)
    return [
        {engine: [seconds[i] for seconds in each] for engine, each in found.items()}
        for i in range(len(contexts))
    ]


def bare_steps(workers: Workers, plan: Plan) -> list[Line]:
    """A step alone, without sampling or text: the model and its scores."""
    return [Line("step at 128 tokens", found) for found in steps(workers, plan, [Context(128)])]


def prefills(workers: Workers, plan: Plan, lengths: Sequence[int] = (42, 256, 1000)) -> list[Line]:
    """A prompt, up to the scores of what follows it."""

    def line(length: int) -> Line:
        def prefill(_: str, worker: Asker) -> float:
            return float(worker.ask("prefill", ids=plan.ids[:length]))

        return Line(f"prompt of {length:,}", alternate(workers, plan.rounds, prefill), length)

    return [line(length) for length in lengths]


def growth(workers: Workers, plan: Plan, tokens: Sequence[int] = (128, 4096)) -> list[Line]:
    """A bare step at a short and at a long context, with caches of 16 and 8 bits."""
    both = {name: workers[name] for name in (OURS, LLAMA)}
    contexts = [Context(count, kind=kind) for kind in KINDS for count in tokens]
    titles = [f"{context.kind} cache, {context.tokens:,} tokens" for context in contexts]
    found = steps(both, plan, contexts)
    return [Line(title, each) for title, each in zip(titles, found, strict=True)]


def batches(workers: Workers, plan: Plan, sizes: Sequence[int] = (1, 8)) -> list[Line]:
    """Bare steps of several rows at 128 tokens of context each."""
    found = steps(workers, plan, [Context(128, rows) for rows in sizes])
    return [Line(f"batch of {n}", each, n) for n, each in zip(sizes, found, strict=True)]
