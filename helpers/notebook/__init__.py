"""Before torch is there: unpacking, installing, tokens."""
