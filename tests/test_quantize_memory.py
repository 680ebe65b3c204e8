"""What quantizing a whole model takes beside it, and what it gives back."""

import subprocess
import sys

import pytest

# A small model first, so that what libraries take at their first use does not count.
MEMORY = """
import os
import psutil, torch
from minillm.config import LayerConfig, ModelConfig
from minillm.course.tool.run import high_water_bytes
from minillm.model import Transformer
from minillm.quantization.scheme import Scheme
from minillm.quantize import quantize_model

def changed(count, width, intermediate):
    layers = (LayerConfig(),) * count
    model = Transformer(ModelConfig(64, width, intermediate, count, 8, 4, 64, 512, layers))
    model.requires_grad_(False)
    block = sum(x.nbytes for x in model.layers[0].parameters())
    before = psutil.Process().memory_info().rss
    scheme = Scheme("gptq", 4, 64, symmetric=False)
    report = quantize_model(model, scheme, [[i % 64 for i in range(256)]] * 2)
    peak = high_water_bytes(os.getpid())
    freed = before - psutil.Process().memory_info().rss
    return (peak - before) / block, freed / (report.bytes_before - report.bytes_after)

torch.set_num_threads(1)
changed(1, 128, 256)
print(*changed(5, 512, 1_536))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of memory")
def test_memory_stays_near_the_model(record_property):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True
    )
    peak, freed = map(float, done.stdout.split())
    record_property(
        "figure",
        f"GPTQ of 5 blocks of 512 columns: at most {peak:.1f} blocks of memory beside the model in "
        f"float32; {freed:.0%} of what the codes save is given back",
    )
    assert peak < 8  # five matrices of 1,536² are three blocks
    assert freed > 0.8
