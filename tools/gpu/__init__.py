"""What `tools/bench_gpu.py` measures, and how."""
