"""Reservoir (echo-state) language model on short stories, beside a transformer of the same size."""
