"""`run`: executes notebooks in a fresh kernel each and stores their outputs."""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minillm.course.tool import notebook as nb


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one execution took: wall time in seconds, peak resident memory in bytes."""

    seconds: float
    peak_bytes: int

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, peak memory {self.peak_bytes / 1e6:,.0f} MB"


class PeakMemory:
    """Samples the resident memory of a process and its descendants in a thread.

    The peak of the sum over all processes, in bytes; on Linux at least the largest high-water mark
    of one process, so that a short peak between two samples counts as well.

    Args:
        pid: the process.
        kernels_only: count only Jupyter kernels among its descendants, and what they start.
        interval: seconds between samples.
    """

    def __init__(self, pid: int, *, kernels_only: bool = False, interval: float = 0.1) -> None:
        self.pid = pid
        self.kernels_only = kernels_only
        self.interval = interval
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, tree_bytes(self.pid, self.kernels_only))
            if self._stop.wait(self.interval):
                return


def tree_bytes(pid: int, kernels_only: bool = False) -> int:
    """Resident bytes of a process and its descendants, at least the largest high-water mark."""
    import psutil

    total, high = 0, 0
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
        if kernels_only:
            kernels = [p for p in processes if any("ipykernel" in part for part in p.cmdline())]
            processes = [p for k in kernels for p in [k, *k.children(recursive=True)]]
        for process in processes:
            total += process.memory_info().rss
            high = max(high, high_water_bytes(process.pid))
    except psutil.Error:
        pass  # a process ended meanwhile; the next sample is as good
    return max(total, high)


def high_water_bytes(pid: int) -> int:
    """Linux's `VmHWM` of a process in bytes; 0 where the system has no such figure."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def needs_run(notebook: nb.Notebook) -> bool:
    """Whether code was edited since the outputs were stored, or a cell has not been run."""
    stored = notebook["metadata"].get("minillm", {}).get("code")
    unrun = any(cell.get("execution_count") is None for _, cell in nb.code_cells(notebook))
    return unrun or stored != nb.code_hash(notebook)


def run(path: Path, *, cell_timeout: int = 120) -> Measurement:
    """Executes one notebook in place, in its own folder, and stores the outputs.

    Raises:
        ValueError: a cell failed; the file then keeps its former outputs.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook: Any = nbformat.from_dict(nb.clean(nb.read(path)))
    client = NotebookClient(
        notebook,
        timeout=cell_timeout,
        kernel_name=nb.KERNEL["name"],
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=False,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],  # the kernel's own start-up warnings
    )
    start = time.perf_counter()
    # The kernel is our child; nothing else of this process counts.
    with client.setup_kernel(env=_kernel_environment()):
        pid = getattr(getattr(client.km, "provisioner", None), "pid", None)
        with PeakMemory(pid or os.getpid()) as memory:
            try:
                _execute(client, notebook)
            except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
                # IPython colours its tracebacks.
                text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
                raise ValueError(f"{path.name}: {text}") from error
            seconds = time.perf_counter() - start
    plain = nb.clean(_plain(notebook))
    plain["metadata"]["minillm"] = {"code": nb.code_hash(plain)}
    nb.write(path, plain)
    return Measurement(seconds, memory.peak_bytes)


def _execute(client: Any, notebook: Any) -> None:
    count = 0
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and cell.source.strip():
            count += 1
            client.execute_cell(cell, index, execution_count=count)
            cell.execution_count = count


def _kernel_environment() -> dict[str, str]:
    # Without this, tools that colour their output would store escape codes in the notebook.
    return {**os.environ, "NO_COLOR": "1"}


def _plain(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _plain(value) for key, value in node.items()}
    return [_plain(item) for item in node] if isinstance(node, list) else node
