"""What the notebooks measure ahead of time: one module per notebook, see `course.precomputed`."""
