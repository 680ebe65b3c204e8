"""What `tools/bench_peers.py` measures: engines in processes of their own, which take turns."""
