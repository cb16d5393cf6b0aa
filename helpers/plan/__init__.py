"""Whether a run fits a machine, how long it takes and how much it costs: `python -m helpers.plan`."""
