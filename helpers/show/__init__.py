"""What a person sees: lines, tables, intervals, progress and W&B."""
