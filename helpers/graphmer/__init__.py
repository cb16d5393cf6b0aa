"""Encoder over source code and its knowledge graph: GraphMER-SE, after GraphMERT (arXiv 2510.09580)."""
