"""Makes the package importable in a notebook, whose setup cell runs this file from its payload."""

import importlib.util
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path


def use(files: Mapping[str, str], sha256: str, shown: Mapping[str, str]) -> None:
    """Makes `import helpers` find these files (path to text), in a folder that lasts as long as the kernel.

    sha256: of the payload. shown: digest of the method's file, which has a cell of its own.

    Raises RuntimeError if the user has a module or a package `helpers`, which this one would hide.
    """
    began = time.monotonic()
    if getattr(sys.modules.get("helpers"), "payload_sha256", "") == sha256:
        return
    spec = importlib.util.find_spec("helpers")
    if spec and spec.origin and "-packages" not in spec.origin and not Path(spec.origin).with_name("notebook").exists():
        raise RuntimeError(
            f"{spec.origin} is a module of yours. This notebook brings a package that is called `helpers`, too, and would hide yours: "
            "rename yours, restart the kernel, and run all cells again."
        )
    folder = tempfile.TemporaryDirectory(prefix="helpers-")
    for name, text in files.items():
        file = Path(folder.name, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="")
    for name in [*sys.modules]:
        if name.partition(".")[0] == "helpers":
            del sys.modules[name]
    sys.path.insert(0, folder.name)
    importlib.invalidate_caches()
    helpers = importlib.import_module("helpers")
    # began: from this cell to the end of the first training step
    vars(helpers).update(payload_sha256=sha256, shown=shown, folder=folder, began=began, first_step_seconds=None)
    print(f"helpers {helpers.__version__}, payload {sha256[:12]}: the code of the cells is in {folder.name}/helpers")
