"""The folder of one run, which no other run overwrites: `run.json` holds what defines the run, and another run is refused."""

import functools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from helpers.data import data_source
from helpers.data.files import RUN_FILE
from helpers.machine import ranks, xla
from helpers.notebook import method
from helpers.parameters import UPLOAD, Parameters, identity
from helpers.show.tracking import hide_bars, say

from . import checkpoint, disk, folder_lock, mirror, provenance

RESULTS_FILE, UPLOADED = "results.json", "uploaded"
RESULTS_SCHEMA = 3


class RunFolder:
    """The folder of one run: its absolute path, whose it is, the method's file that it trains, its results.

    path: absolute, whatever `%cd` does later.
    """

    def __init__(self, path: Path, notebook: str, params: Parameters):
        self.path = self.claimed = path
        self.notebook, self.params = notebook, params
        self.definition = {"notebook": notebook, **identity(params)}
        self.mirror: mirror.Mirror | None = None

    @functools.cached_property
    def method(self) -> Path:
        """Where the cell that shows the method writes its file."""
        module, _ = method.shown()
        return Path(tempfile.mkdtemp(), f"{module.rpartition('.')[2]}.py")

    @classmethod
    def claim(cls, notebook: str, params: Parameters) -> "RunFolder":
        """Creates `params.output_dir` for a new run, or takes it for the same run again, which has the same `identity`.

        A folder belongs to a run from its first trained step or its results on; before that other parameters may have it.

        Raises:
            ValueError: the folder holds another run; or this one, and `resume` is False; Google Drive is not mounted.
            OSError: the folder, or the second place, cannot be read or written.
            FolderTaken: another process owns the folder.
        """
        run = cls(Path(params.output_dir).absolute(), notebook, params)
        run._take()
        hide_bars()
        return run

    def _take(self) -> None:
        """Makes `path` the folder of this run, as `claim` says, with what a second place has of it."""
        if mirror.DRIVE_POINT in self.path.parents and not os.path.ismount(mirror.DRIVE_POINT):
            raise ValueError(f"output_dir={str(self.path)!r}: Google Drive is not mounted; set keep_in='drive'")
        keep_in, resume = self.params.keep_in, self.params.resume
        self._require("output_dir", self.path, self.definition, resume)
        folder_lock.own(self.path)
        if keep_in:
            place = mirror.place_of(keep_in, self.path)
            try:
                self._require("keep_in", place, self.definition, resume)
                folder_lock.own(place, "keep_in")
                mirror.restore(place, self.path)
            except OSError as error:
                raise OSError(
                    f"keep_in={keep_in!r} cannot be used: {error}. Free space, or name another place"
                ) from error
            if folder_lock.is_owner(place):  # not the kernel that started this process
                self.mirror = mirror.mirror_of(self.path, place)
        elif "COLAB_RELEASE_TAG" in os.environ:
            say("ATTENTION: this run is deleted with this runtime's disk: set keep_in='drive' to continue in a new one")
        trained = _trained(self.path)
        say(f"output_dir: the run {f'goes on from {trained[0].name}' if trained else 'begins at step 0'}")
        if not trained:
            disk.write_json(self.path / RUN_FILE, self.definition)
        data_source.kept_upload = None
        if trained or ranks.count() > 1:  # in a kernel's processes the file is chosen
            data_source.kept_upload = next((self.path / UPLOADED).glob("*"), None)

    def _require(self, name: str, folder: Path, definition: dict, resume: bool = True) -> None:
        """Raises ValueError if a folder holds the trained steps or the results of another run; `name` is its parameter."""
        recorded = disk.read_json(folder / RUN_FILE) or {}
        differences = []
        for key, value in definition.items():
            if recorded.get(key) != value:
                differences.append(f"{key}={recorded.get(key)!r} there, {value!r} here")
        problem = ""
        if "parameters" in recorded:
            problem = "a run of version 0.2, which this version does not read"
        elif differences:
            problem = f"another run ({'; '.join(differences)})"
        elif not resume:
            problem = "this run, and resume=False"
        if problem and _trained(folder):
            raise ValueError(
                f"{name}={str(folder)!r} holds {problem}. Nothing was touched: set {name} to a new folder, or set back what differs"
            )

    def note(self, **facts: Any) -> None:
        """Notes what else must be the same when the run goes on, such as the digest of its data. Raises ValueError if it differs."""
        chosen = data_source.chosen_upload
        if self.params.data_source == UPLOAD and chosen and not data_source.kept_upload:
            (self.path / UPLOADED).mkdir(exist_ok=True)
            shutil.copy(chosen, self.path / UPLOADED)
        recorded = disk.read_json(self.path / RUN_FILE)
        known = {name: fact for name, fact in facts.items() if name in recorded}
        self._require("output_dir", self.path, known)
        self.definition |= facts
        disk.write_json(self.path / RUN_FILE, recorded | facts)

    def use_method(self) -> None:
        """Imports the notebook's method from the file that its cell wrote, which becomes a part of this run.

        An edited file is another run: it gets a folder of its own, `<output_dir>-edited-<digest>`, and one line says so.

        Raises RuntimeError if that cell was not run, ValueError if this folder holds a run of another file, and what `claim` raises.
        """
        module, built = method.shown()
        if not self.method.exists():
            raise RuntimeError("run the cell that shows the method first, and then this one")
        text = self.method.read_text(encoding="utf-8")
        digest = method.digest(text)
        self.definition.pop("method_file", None)
        self.path = self.claimed
        if digest != built:
            self.path = self.claimed.with_name(f"{self.claimed.name}-edited-{digest[:8]}")
            say(f"{self.method.name} was edited: this run trains your version, in a folder of its own, {self.path}")
        self._take()
        self.note(method_file=digest)  # what trained in the folder before has none
        folder = self.path / "method"
        folder.mkdir(exist_ok=True)
        for source in method.room_of(module).glob("*.py"):  # a saved model may bring them along
            shutil.copy(source, folder)
        file = folder / self.method.name
        file.write_text(text, encoding="utf-8")
        method.use(module, file)
        xla.keep_programs(self.path / "compiled")

    def results(self, runtime, **parts: Any) -> Path:
        """Writes `results.json` (docs/architecture.md lists its keys) and returns its path.

        runtime: what `runtime.detect` returned. parts: `data` with source, revision and sha256, `eval`, `artifacts` and whatever else the notebook measured.
        """
        results = {
            "schema": RESULTS_SCHEMA,
            "notebook": self.notebook,
            "seed": self.params.seed,
            "parameters": self.params.model_dump(),
            "run": disk.read_json(self.path / RUN_FILE),
            "code": provenance.code(),
            "versions": provenance.versions(),
            "runtime": runtime.results(),
            **parts,
        }
        disk.write_json(self.path / RESULTS_FILE, results)
        if self.mirror:
            problem = self.mirror.copy()
            if problem:
                say(f"ATTENTION: keep_in: not everything is copied ({problem}): run this cell again")
            else:
                say(f"keep_in: everything is copied to {self.mirror.place}")
        return self.path / RESULTS_FILE


def _trained(folder: Path) -> list[Path]:
    """Checkpoints of steps that were trained, the newest first, and results."""
    checkpoints = [path for path in checkpoint.listed(folder) if checkpoint.step_of(path)]
    return [*checkpoints, *folder.glob(RESULTS_FILE)]
