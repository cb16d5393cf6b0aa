"""What the training notebooks share: runtime report, plan, trainer mixin, checkpoints, tracking, and one package a model.

Importing `helpers` is instant and never imports torch; each module imports what it needs.
A package of the same name on the Python package index is somebody else's: never `pip install helpers`.
"""

import logging
import warnings

__version__ = "0.3.0"

# What the setup cell sets (notebook/unpacking.py): digests of the payload, and of the method's files whose code a cell shows.
payload_sha256: str
shown: dict[str, str]

warnings.filterwarnings("ignore", "IProgress not found")  # tqdm then prints plain bars, and nothing is missing
# On import it says that a package is missing for a faster CPU kernel, which nothing here needs.
logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(lambda record: "pip install" not in record.getMessage())
