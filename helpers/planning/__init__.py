"""How long a job takes on a machine, what fits and what it costs: estimated, or scaled from what was measured."""
