"""What a phase waits for, from what it needs, what it took and what the machine can do."""

from dataclasses import dataclass
from typing import Any, Literal

from minillm.bench.cost import Cost
from minillm.bench.peaks import Ceilings

Phase = Literal["prefill", "decode"]
Bound = Literal["compute", "bandwidth", "overhead"]

# Below this share of the nearer ceiling, most of the time goes to something else than that.
NEAR = 0.5

# What helps, by the phase, and by what it waits for. Bandwidth is the weights', or the cache's.
KNOBS = {
    ("prefill", "compute"): (
        "a shorter prompt, or a faster product: more threads (OMP_NUM_THREADS, up to the cores), a "
        "GPU (--device cuda), there in 16 bits (--dtype bfloat16 or float16)"
    ),
    ("prefill", "weights"): (
        "several prompts in one batch, which read the weights once, or fewer bytes per weight, if "
        "they are not few already (--quantize int8 or int4, with an engine that reads the codes)"
    ),
    ("prefill", "cache"): "fewer bytes of cache: --window N, or --kv-cache int8",
    ("prefill", "overhead"): (
        "an engine that runs the step as a whole, where none does yet (--backend cpu or cuda); a "
        "batch, or a longer prompt, would cost little more"
    ),
    ("decode", "compute"): (
        "a faster product: more threads (OMP_NUM_THREADS, up to the cores), or a GPU (--device "
        "cuda); a larger batch no longer pays"
    ),
    ("decode", "weights"): (
        "a larger batch, which reads the weights once for all rows, or fewer bytes per weight, if "
        "they are not few already (--quantize int8 or int4, with an engine that reads the codes)"
    ),
    ("decode", "cache"): (
        "fewer bytes of cache: --kv-cache int8 or int4, or --window N --sinks 4, which bounds it"
    ),
    ("decode", "overhead"): (
        "an engine that runs the step as a whole, where none does yet (--backend cpu: one thread "
        "team and fused products; --backend cuda: a graph instead of launches), or a larger batch"
    ),
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a phase waits for, and what would help.

    bound: "compute" or "bandwidth", whose ceiling is near; or "overhead", where neither is: the
    time goes to launches, to Python, to threads that wait, or to a kernel that is far from what the
    machine can do.
    seconds: what it took. least_s: what the ceilings allow at best.
    fraction: least_s / seconds. Above 1 where the work is cheaper than it was counted: products of
    whole numbers run above the ceiling of floating-point ones, and a model that fits into the
    processor's cache above that of memory.
    flops_fraction, bytes_fraction: what was achieved of either ceiling.
    knob: what to change.
    """

    bound: Bound
    seconds: float
    least_s: float
    flops_per_s: float
    bytes_per_s: float
    flops_fraction: float
    bytes_fraction: float
    knob: str

    @property
    def fraction(self) -> float:
        """Of the nearer ceiling."""
        return max(self.flops_fraction, self.bytes_fraction)

    def as_dict(self) -> dict[str, Any]:
        """The fields and the fraction, for JSON."""
        return {name: getattr(self, name) for name in (*self.__slots__, "fraction")}


def diagnose(cost: Cost, seconds: float, ceilings: Ceilings, phase: Phase = "decode") -> Diagnosis:
    """Which ceiling a phase is at, and the knob that helps.

    least time = max(FLOPs / ceiling, bytes / ceiling): arithmetic and reading go on at once. Where
    that is half of the time or more, the larger of the two is the bound; else overhead.

    seconds: of the work that `cost` counts. phase: "prefill", which answers "slow to start", or
    "decode", "slow to stream"; it decides which knobs there are.
    Raises ValueError for a time that is not positive, and an unknown phase.
    """
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds!r}; a positive time is needed")
    if phase not in ("prefill", "decode"):
        raise ValueError(f"phase is {phase!r}; known are prefill, decode")
    compute_s, memory_s = cost.flops / ceilings.flops_per_s, cost.bytes / ceilings.bytes_per_s
    bound: Bound = "compute" if compute_s >= memory_s else "bandwidth"
    if max(compute_s, memory_s) < NEAR * seconds:
        bound = "overhead"
    larger = "weights" if cost.weight_bytes >= cost.cache_bytes else "cache"
    return Diagnosis(
        bound=bound,
        seconds=seconds,
        least_s=max(compute_s, memory_s),
        flops_per_s=cost.flops / seconds,
        bytes_per_s=cost.bytes / seconds,
        flops_fraction=compute_s / seconds,
        bytes_fraction=memory_s / seconds,
        knob=KNOBS[phase, larger if bound == "bandwidth" else bound],
    )
