"""The settings of a run, each with its reason, before it starts."""
