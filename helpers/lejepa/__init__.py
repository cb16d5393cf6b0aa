"""LeJEPA text embeddings: views of one text are drawn together, all texts towards an isotropic Gaussian."""
