"""The folder of one run: its owner, its sessions, its provenance and its results."""
