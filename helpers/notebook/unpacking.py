"""Makes the package importable in a notebook, whose setup cell runs this file from its payload."""

import importlib
import importlib.machinery
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path


def use(files: Mapping[str, str], sha256: str, shown: Mapping[str, str] | None = None) -> None:
    """Makes `import helpers` find these files (path to text): in a checkout that has them, else unpacked.

    sha256: of the payload; it names the folder. shown: digest of the method's file, which has a cell of its own.

    Raises RuntimeError if the user has a module or a package `helpers`, which this one would hide.
    """
    began = time.monotonic()
    _check_name_is_free()
    root = _checkout(files) or _unpacked(files, sha256)
    loaded = getattr(sys.modules.get("helpers"), "__file__", None)
    if not (loaded and Path(loaded).resolve().is_relative_to(root)):
        for name in [*sys.modules]:
            if name.partition(".")[0] == "helpers":
                del sys.modules[name]
        importlib.invalidate_caches()
    while str(root) in sys.path:
        sys.path.remove(str(root))
    sys.path.insert(0, str(root))
    helpers = importlib.import_module("helpers")
    assert Path(str(helpers.__file__)).resolve().is_relative_to(root), f"`import helpers` found {helpers.__file__}"
    # began: from this cell to the end of the first training step
    vars(helpers).update(payload_sha256=sha256, shown=dict(shown or {}), began=began, first_step_seconds=None)
    print(f"helpers {helpers.__version__}, payload {sha256[:12]}: the code of the cells is in {root / 'helpers'}")


def _check_name_is_free() -> None:
    """Looks for a `helpers` that is not ours among what is loaded, and where `import` would find it; not among what pip installed."""
    loaded = getattr(sys.modules.get("helpers"), "__file__", None)
    places = []
    if loaded:
        places.append(Path(loaded))
    for entry in sys.path:
        spec = importlib.machinery.PathFinder.find_spec("helpers", [entry])
        if spec and spec.origin:
            places.append(Path(spec.origin))
        elif spec:  # a folder without __init__.py
            for folder in spec.submodule_search_locations or ():
                places += [*Path(folder).glob("*.py")][:1]
    for place in places:
        installed = {"site-packages", "dist-packages"} & {*place.parts}
        if not installed and not _is_ours(place.parent):
            raise RuntimeError(
                f"{place.resolve()} is a module of yours. This notebook brings a package that is called `helpers`, too, and would hide "
                "yours. Rename yours (to my_helpers, for example), or put this notebook into another folder; then restart the kernel "
                "and run all cells again."
            )


def _is_ours(package: Path) -> bool:
    return (package / "notebook" / "unpacking.py").is_file()


def _has_files(root: Path, files: Mapping[str, str]) -> bool:
    try:
        return all((root / name).read_bytes() == text.encode() for name, text in files.items())
    except OSError:
        return False


def _checkout(files: Mapping[str, str]) -> Path | None:
    """The nearest folder, from here upwards, with the same helpers."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "helpers" / "__init__.py").is_file():
            if _has_files(folder, files):
                return folder
            if _is_ours(folder / "helpers"):
                print(f"{folder / 'helpers'} is another version and is not used (in a checkout: make notebooks)")
    return None


def _unpacked(files: Mapping[str, str], sha256: str) -> Path:
    def write(folder: Path) -> None:
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(text.encode())

    return made_once(f"helpers-{sha256[:16]}", write, lambda folder: _has_files(folder, files))


def made_once(name: str, make: Callable[[Path], None], is_whole: Callable[[Path], bool]) -> Path:
    """A folder in the user's cache that `make` fills, whole or not at all, where it is not there; a temporary one if that is impossible."""
    try:
        root = Path.home() / ".cache" / "training-notebooks" / name
        if is_whole(root):
            return root
        root.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root.parent))
    except (OSError, RuntimeError):  # a home that cannot be written, or none
        root = fresh = Path(tempfile.mkdtemp(prefix=f"{name}-")).resolve()
    try:
        make(fresh)
    except BaseException:
        shutil.rmtree(fresh)
        raise
    try:
        return fresh.rename(root)
    except OSError:  # another process was first, or the folder was changed
        if not is_whole(root):
            return fresh
        shutil.rmtree(fresh)
        return root
