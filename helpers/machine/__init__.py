"""The device of a run, its precision and its kernels, each with its reason."""
