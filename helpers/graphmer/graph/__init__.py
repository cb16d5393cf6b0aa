"""The knowledge graph of source code: read, checked, split."""
