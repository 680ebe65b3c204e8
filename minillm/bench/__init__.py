"""Measure how fast this machine reads a prompt and writes an answer, and how fast it could.

`measure` takes the times; `step_cost` counts the bytes and FLOPs that they were spent on, from the
model alone; `ceilings` measures how many this machine can do in a second; `diagnose` puts the three
together and says what a phase waits for.
"""

from minillm.bench.cost import Cost, prefill_cost, step_cost
from minillm.bench.diagnosis import Diagnosis, diagnose
from minillm.bench.host import machine
from minillm.bench.peaks import Ceilings, ceilings
from minillm.bench.timing import (
    Engine,
    Measurement,
    measure,
    minillm_engine,
    random_prompts,
    time_steps,
    transformers_engine,
)

__all__ = [
    "Ceilings",
    "Cost",
    "Diagnosis",
    "Engine",
    "Measurement",
    "ceilings",
    "diagnose",
    "machine",
    "measure",
    "minillm_engine",
    "prefill_cost",
    "random_prompts",
    "step_cost",
    "time_steps",
    "transformers_engine",
]
