"""The folder of one run: its checkpoints, its owner, its second place, its provenance and its results."""
