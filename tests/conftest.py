"""What all tests share: markers that skip where the hardware is missing, and the real model."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from minillm import LLM

# Before any test imports them: no warning about forked tokenizers, no look at the network.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# Without a GPU Triton's kernels run under its interpreter, which is chosen when triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests that take minutes or need more than `make setup` brings: left out unless -m names them.
ON_REQUEST = ("binder", "browser", "forms")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = str(config.option.markexpr)
    for marker in (name for name in ON_REQUEST if name not in asked):
        skip = pytest.mark.skip(reason=f"only with -m {marker}")
        for item in items:
            if item.get_closest_marker(marker):
                item.add_marker(skip)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the real model, which `make test` fetches. Without it the tests fail."""
    from minillm.weights.pull import resolve

    try:
        return resolve("smollm2")
    except FileNotFoundError as error:
        pytest.fail(f"the tests need the model: run `minillm pull smollm2` once ({error})")


@pytest.fixture(scope="session")
def llm(smollm2: Path) -> "LLM":
    """The real model on the CPU in float32. It keeps no state, so all tests share it."""
    from minillm import LLM

    return LLM.from_pretrained(smollm2, device="cpu", dtype="float32")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints measured figures, and what each notebook took, one at a time."""
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, [])]
    figures = [text for r in reports for name, text in r.user_properties if name == "figure"]
    if figures:
        terminalreporter.section("measured on this machine")
    for text in figures:
        terminalreporter.line(str(text))
    measured = [values for r in reports if "peak_bytes" in (values := dict(r.user_properties))]
    if measured:
        terminalreporter.section("notebooks: time, processor time, peak memory of the kernel")
    for values in sorted(measured, key=lambda v: (str(v["notebook"]), str(v["form"]))):
        seconds, cpu = float(values["seconds"]), float(values["cpu_seconds"])
        terminalreporter.line(
            f"{values['notebook']:<32} {values['form']:<22} {seconds:6.1f} s {cpu:6.1f} s "
            f"{float(values['peak_bytes']) / 1e6:6,.0f} MB"
            + ("  WARNING: over the limit of 90 s, unless the machine was busy" * values["slow"])
        )
