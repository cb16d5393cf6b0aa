"""Template of every notebook's setup cell: build.py replaces this docstring by a header and fills in the constants."""

import base64
import bz2
import hashlib
import importlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

REQUIREMENTS = ""
SHA256 = ""
PAYLOAD = ""


def payload_files() -> dict[str, bytes]:
    """Content of each file of the payload, by its path."""
    damaged = "The payload is damaged: upload the notebook again, as it came."
    try:
        texts = json.loads(bz2.decompress(base64.b85decode(PAYLOAD)))
    except (ValueError, OSError) as error:
        raise RuntimeError(damaged) from error
    files = {name: text.encode() for name, text in texts.items()}
    if content_hash(files) != SHA256:
        raise RuntimeError(f"{damaged} Its sha256 is {content_hash(files)}, expected {SHA256}.")
    return files


def content_hash(files: dict[str, bytes]) -> str:
    """sha256 over sorted paths, a NUL after each, and contents."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name])
    return digest.hexdigest()


def holds(root: Path, files: dict[str, bytes]) -> bool:
    """Whether a folder has these very files."""
    try:
        return all((root / name).read_bytes() == content for name, content in files.items())
    except OSError:
        return False


def find_checkout(files: dict[str, bytes]) -> Path | None:
    """The nearest folder, from here upwards, that holds the same helpers."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "helpers" / "__init__.py").is_file():
            if holds(folder, files):
                return folder
            print(f"{folder / 'helpers'} is not this notebook's version: not used (in a checkout: make notebooks)")
    return None


def unpack(files: dict[str, bytes]) -> Path:
    """This payload's folder in the user's cache, written once; a temporary one where that cannot be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "training-notebooks"
    root = cache / f"helpers-{SHA256[:16]}"
    if holds(root, files):
        return root
    try:
        cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{root.name}-", dir=cache))
    except OSError:
        root = fresh = Path(tempfile.mkdtemp(prefix="helpers-")).resolve()
    for name, content in files.items():
        (fresh / name).parent.mkdir(parents=True, exist_ok=True)
        (fresh / name).write_bytes(content)
    try:
        return fresh.rename(root)
    except OSError:  # another kernel was first, or somebody changed what is there
        if not holds(root, files):
            return fresh
        shutil.rmtree(fresh)
        return root


def use_own_helpers() -> None:
    """Import this notebook's own helpers and install REQUIREMENTS."""
    files = payload_files()
    root = find_checkout(files) or unpack(files)
    loaded = getattr(sys.modules.get("helpers"), "__file__", None)
    if not (loaded and Path(loaded).resolve().is_relative_to(root)):
        for name in [name for name in sys.modules if name.partition(".")[0] == "helpers"]:
            del sys.modules[name]
        importlib.invalidate_caches()
    sys.path[:] = [str(root), *(entry for entry in sys.path if entry != str(root))]
    helpers = importlib.import_module("helpers")
    if not Path(helpers.__file__ or "/").resolve().is_relative_to(root):
        raise RuntimeError(
            f"`import helpers` found {helpers.__file__}, not {root}. Do not pip install helpers (it is a stranger's): "
            "uninstall it, restart the runtime and run this cell first."
        )
    helpers.payload_sha256 = SHA256
    print(
        f"helpers {helpers.__version__}, payload {SHA256[:12]}, in {root}: open helpers/<room>/<file>.py there to read the code"
    )
    importlib.import_module("helpers.setup").install(REQUIREMENTS)


if PAYLOAD:  # empty in the template alone, so that build.py can import the functions above
    use_own_helpers()
