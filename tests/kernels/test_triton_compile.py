"""Every Triton kernel compiles for every kind of GPU, without a GPU, and spills no registers."""

import json
import os
import subprocess
import sys

import pytest

from tests.checkout import ROOT

pytest.importorskip("triton", reason="there is no triton for this system")

# Bytes of shared memory that a block of threads may have: sm_75 has 64 KiB; the smallest of the
# later ones (sm_86) has 99 KiB.
SHARED = {75: 64 * 1024, 80: 99 * 1024, 90: 99 * 1024}
KERNELS = {
    "add_parts_kernel",
    "add_rms_norm_kernel",
    "combine_kernel",
    "decode_attention_kernel",
    "draw_kernel",
    "few_tokens_kernel",
    "gate_kernel",
    "int8_kernel",
    "quantized_attention_kernel",
    "quantized_matvec_kernel",
    "rms_norm_kernel",
    "rope_and_cache_kernel",
}


@pytest.mark.slow
@pytest.mark.parametrize("arch", SHARED)
def test_no_spills(arch, tmp_path, record_property):
    """In a process of its own: in this one Triton may interpret."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "tools/triton_usage.py", "--json", "--arch", str(arch)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row["kernel"] for row in rows} == KERNELS
    for row in rows:
        assert row["arch"] == arch
        assert row["spilled"] == 0, row
        assert row["shared"] <= SHARED[arch], row
    for name in sorted(KERNELS):
        mine = [row for row in rows if row["kernel"] == name]
        registers, shared = (sorted({row[key] for row in mine}) for key in ("registers", "shared"))
        record_property(
            "figure",
            f"sm_{arch} {name}: {len(mine)} variants, {registers[0]} to {registers[-1]} registers, "
            f"{shared[0]:,} to {shared[-1]:,} bytes of shared memory, no spills",
        )
