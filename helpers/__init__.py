"""What the training notebooks share: runtime report, plan, trainer mixin, checkpoints, tracking, and one package a model.

Importing `helpers` is instant and never imports torch; each module imports what it needs.
A package of the same name on the Python package index is somebody else's: never `pip install helpers`.
"""

__version__ = "0.1.0"
