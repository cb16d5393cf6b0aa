"""Around a notebook's own cells: unpacking, installing, tokens, and the file of its method, which a reader can edit."""
