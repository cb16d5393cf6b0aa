"""Link prediction: scorers, filtered ranks, baselines and tasks."""
