"""The GraphMER encoder. Only relative imports: the folder is saved with the weights and loads without this package."""
