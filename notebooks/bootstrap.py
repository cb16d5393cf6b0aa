"""Template of every notebook's setup cell: build.py replaces this docstring by a header and fills in the constants."""

import base64
import bz2
import hashlib
import importlib
import io
import sys
import tempfile
import zipfile
from pathlib import Path

REQUIREMENTS = ""
SHA256 = ""
PAYLOAD = ""


def package_files(root: Path) -> dict[str, bytes]:
    """Content of each module of `root/helpers`, by its path relative to `root`."""
    paths = (path for path in (root / "helpers").rglob("*.py") if ".ipynb_checkpoints" not in path.parts)
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def content_hash(files: dict[str, bytes]) -> str:
    """sha256 over the sorted paths, a NUL after each, and the contents."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(name.encode() + b"\0" + files[name])
    return digest.hexdigest()


def find_imported() -> Path | None:
    """The folder that this kernel already imported the same helpers from."""
    file = getattr(sys.modules.get("helpers"), "__file__", None)
    root = file and Path(file).resolve().parents[1]
    return root if root and content_hash(package_files(root)) == SHA256 else None


def find_checkout() -> Path | None:
    """The working directory or the nearest folder above it that holds the same helpers."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "helpers" / "__init__.py").is_file():
            if content_hash(package_files(folder)) == SHA256:
                return folder
            print(f"{folder / 'helpers'} is not this notebook's version: not used (in a checkout: make notebooks)")
    return None


def unpack() -> Path:
    """A fresh temporary folder with the payload's helpers; the notebook's own folder may be read-only."""
    damaged = "The setup cell's payload is damaged: upload the notebook again, as it came."
    try:
        archive = zipfile.ZipFile(io.BytesIO(bz2.decompress(base64.b85decode(PAYLOAD))))
        files = {name: archive.read(name) for name in archive.namelist()}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise RuntimeError(damaged) from error
    if content_hash(files) != SHA256:
        raise RuntimeError(f"{damaged} Its sha256 is {content_hash(files)}, expected {SHA256}.")
    root = Path(tempfile.mkdtemp(prefix="helpers-")).resolve()
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def use_own_helpers() -> None:
    """Import this notebook's helpers, whatever else goes by that name, and install REQUIREMENTS."""
    root = find_imported()
    if root is None:
        root = find_checkout() or unpack()
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
    print(f"helpers {helpers.__version__} from {root}")
    importlib.import_module("helpers.setup").install(REQUIREMENTS)


if PAYLOAD:  # empty in the template alone, so that build.py can import the functions above
    use_own_helpers()
