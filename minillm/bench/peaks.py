"""What this machine can do at most: bytes read and floating-point operations, per second.

Both are measured, with the plainest work there is, because data sheets promise what no program
gets. They are ceilings for the same threads, the same device and the same dtype as the model's.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from minillm.bench.counts import at_least

# So many bytes are read where the caches' size is not known: more than nearly any of them hold.
LEAST_READ = 2**27
MOST_READ = 2**32
# A read is short, so that others on the machine disturb it more easily than a product: so many
# reads are timed for each product.
READS = 5
# The side of the largest square matrix that is multiplied. On a GPU a small product does not fill
# the card; on a CPU a large one only takes long.
MOST_ROWS = {"cpu": 2048, "cuda": 8192}
# A product of so many seconds is long enough to be timed, and no larger one is tried.
LONG_ENOUGH = 0.1


@dataclass(frozen=True, slots=True)
class Ceilings:
    """bytes_per_s: of memory that are read. flops_per_s: a product and a sum count as two."""

    bytes_per_s: float
    flops_per_s: float

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"{name} is {value!r}; a positive number is needed")

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which work stops waiting for memory and waits for arithmetic.

        Source: Williams, Waterman and Patterson 2009, "Roofline", doi 10.1145/1498765.1498785.
        """
        return self.flops_per_s / self.bytes_per_s


def ceilings(
    device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, runs: int = 5
) -> Ceilings:
    """Measure both, with all of PyTorch's threads; about a second.

    Each is the best that is seen: of `runs` products of each size, and of five times as many reads.
    device: where memory is read and matrices are multiplied. dtype: of the matrices.
    Raises ValueError for fewer runs than 1.
    """
    at_least(1, runs=runs)
    where = torch.device(device)
    with torch.inference_mode():
        return Ceilings(
            read_bytes_per_s(where, READS * runs), product_flops_per_s(where, dtype, runs)
        )


def read_bytes_per_s(device: torch.device, runs: int = 5) -> float:
    """Bytes per second of a sum over an array that no cache holds; the best of `runs` runs."""
    array = torch.ones(read_size(device) // 4, device=device)
    return array.nbytes / best_seconds(array.sum, device, runs)


def product_flops_per_s(device: torch.device, dtype: torch.dtype, runs: int = 5) -> float:
    """FLOP per second of the fastest square matrix product: 2·N³ for N rows.

    N doubles from 256 on, until a product takes long enough or is as large as is sensible here.
    """
    rows, rate, seconds = 256, 0.0, 0.0
    while rows <= MOST_ROWS.get(device.type, MOST_ROWS["cuda"]) and seconds < LONG_ENOUGH:
        left = torch.full((rows, rows), 0.5, dtype=dtype, device=device)
        seconds = best_seconds(lambda left=left: left @ left, device, runs)  # type: ignore[misc]
        rate = max(rate, 2 * rows**3 / seconds)
        rows *= 2
    return rate


def best_seconds(work: Callable[[], object], device: torch.device, runs: int) -> float:
    """The least time of `runs` calls, after one that warms up. A ceiling is the best that is seen.

    A call to a GPU returns before the work is done; it is waited for.
    """
    work()
    _wait_for(device)
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        _wait_for(device)
        times.append(time.perf_counter() - begin)
    return max(min(times), 1e-9)  # a clock may be coarse


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def read_size(device: torch.device) -> int:
    """Bytes to read: twice what the caches hold, within bounds, and a quarter of what is free."""
    wanted, free = LEAST_READ, None
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        wanted = MOST_READ  # a GPU reads 1 GiB so fast that the launch would count
    elif device.type == "cpu":
        wanted = max(wanted, 2 * last_level_cache())
        free = available_memory()
    wanted = min(wanted, MOST_READ)
    return wanted if free is None else max(min(wanted, free // 4), 2**20)


def last_level_cache() -> int:
    """Bytes of all caches of the highest level, on Linux; 0 where the system does not tell."""
    sizes: dict[int, dict[str, int]] = {}
    for index in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level = int((index / "level").read_text())
            size = (index / "size").read_text().strip()
            shared = (index / "shared_cpu_list").read_text()
        except (OSError, ValueError):
            continue
        if size.endswith("K") and size[:-1].isdigit():
            sizes.setdefault(level, {})[shared] = int(size[:-1]) * 1024
    return sum(sizes[max(sizes)].values()) if sizes else 0


def available_memory() -> int | None:
    """Bytes that a process may still take, on Linux; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
