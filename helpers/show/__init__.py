"""What a person sees: lines, tables, progress and W&B."""
