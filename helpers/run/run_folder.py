"""The folder of one run, which no other run overwrites: `run.json` holds what defines the run, and another run is refused."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from helpers.data import data_source
from helpers.data.files import RUN_FILE
from helpers.machine import ranks, xla
from helpers.notebook import method
from helpers.parameters import Parameters, identity
from helpers.show.tracking import hide_bars, say

from . import disk, folder_lock, mirror, provenance

RESULTS_FILE, UPLOADED = "results.json", "uploaded"


class RunFolder:
    """The folder of one run: its absolute path, whose it is, the method's file that it trains, its results.

    path: absolute, whatever `%cd` does later. method: where the cell that shows the method writes its file.
    """

    def __init__(self, notebook: str, params: Parameters):
        self.notebook, self.params = notebook, params
        self.path = self.claimed = Path(params.output_dir).absolute()
        self.definition = {"notebook": notebook, **identity(params)}
        self.method = Path(tempfile.mkdtemp(), "method.py")
        self.mirror: mirror.Mirror | None = None

    @classmethod
    def claim(cls, notebook: str, params: Parameters) -> "RunFolder":
        """Creates `params.output_dir` for a new run, or takes it for the same run again, which has the same `identity`.

        A folder belongs to a run from its first trained step or its results on; before that other parameters may have it.

        Raises:
            ValueError: the folder holds another run; or this one, and `resume` is False; Google Drive is not mounted.
            OSError: the folder, or the second place, cannot be read or written.
            FolderTaken: another process owns the folder.
        """
        hide_bars()
        data_source.chosen_upload = None
        run = cls(notebook, params)
        run._take()
        return run

    def _take(self) -> None:
        """Makes `path` the folder of this run, as `claim` says, with what a second place has of it."""
        keep_in = self.params.keep_in
        if mirror.DRIVE_POINT in self.path.parents and not mirror.DRIVE_POINT.is_mount():
            raise ValueError(f"output_dir={str(self.path)!r}: Google Drive is not mounted; set keep_in='drive'")
        self._own("output_dir", self.path)
        if keep_in and ranks.count() == 1:
            place = mirror.place_of(keep_in, self.path)
            self._own("keep_in", place)
            mirror.copy_new(place, self.path, changed=False)
            self.mirror = mirror.mirror_of(self.path, place)
        if not keep_in and "COLAB_RELEASE_TAG" in os.environ:
            say("ATTENTION: this run is deleted with this runtime's disk: set keep_in='drive' to continue in a new one")
        data_source.kept_upload = next((self.path / UPLOADED).glob("*"), None)
        recorded = disk.read_json(self.path / RUN_FILE) or {}
        if not _trained(self.path):
            say("output_dir: the run begins at step 0")
            recorded = {}
        disk.write_json(self.path / RUN_FILE, self.definition | recorded)

    def _own(self, name: str, folder: Path) -> None:
        """Takes a folder, which the parameter `name` names, unless it holds another run."""
        recorded = disk.read_json(folder / RUN_FILE) or {}
        if not recorded and name == "keep_in":  # a Drive may have lost it
            recorded = self.definition
        resume = {"resume": self.params.resume}
        _refuse(name, folder, recorded | {"resume": True}, self.definition | resume)
        folder_lock.own(folder, name)

    def note(self, **facts: Any) -> None:
        """Notes what else must be the same when the run goes on, such as the digest of its data. Raises ValueError if it differs."""
        if data_source.chosen_upload:
            (self.path / UPLOADED).mkdir(exist_ok=True)
            shutil.copy(data_source.chosen_upload, self.path / UPLOADED)
        recorded = disk.read_json(self.path / RUN_FILE)
        _refuse("output_dir", self.path, facts | recorded, facts)
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
        path = self.claimed
        if digest != built:
            path = Path(f"{path}-edited-{digest[:8]}")
            say(f"the method was edited: this run trains your version, in a folder of its own, {path}")
        if path != self.path:
            self.path = path
            self.definition.pop("method_file", None)
            self._take()
        self.note(method_file=digest)  # what trained in the folder before has none
        folder = self.path / "method"
        folder.mkdir(exist_ok=True)
        for source in method.room_of(module).glob("*.py"):  # a saved model may bring them along
            shutil.copy(source, folder)
        file = folder / f"{module.rpartition('.')[2]}.py"
        file.write_text(text, encoding="utf-8")
        method.use(module, file)
        xla.keep_programs(self.path / "compiled")

    def results(self, runtime, **parts: Any) -> Path:
        """Writes `results.json` (docs/architecture.md lists its keys) and returns its path.

        runtime: what `runtime.detect` returned. parts: `data` with source, revision and sha256, `eval`, `artifacts` and whatever else the notebook measured.
        """
        results = {
            "schema": 3,
            "notebook": self.notebook,
            "seed": self.params.seed,
            "parameters": self.params.model_dump(),
            "run": disk.read_json(self.path / RUN_FILE),
            "code": provenance.code(),
            "versions": provenance.versions(),
            "runtime": runtime.results(),
            **parts,
        }
        file = self.path / RESULTS_FILE
        disk.write_json(file, results)
        if self.mirror:
            say(self.mirror.copy())
        return file


def _refuse(name: str, folder: Path, recorded: dict, definition: dict) -> None:
    """Raises ValueError if a folder, which the parameter `name` names, holds the trained steps or the results of another run."""
    differences = []
    for key, value in definition.items():
        if recorded.get(key) != value:
            differences.append(f"{key}={recorded.get(key)!r} there, {value!r} here")
    if differences and _trained(folder):
        raise ValueError(
            f"{name}={str(folder)!r} holds another run ({'; '.join(differences)}). Nothing was touched: set {name} to a new folder, or set "
            "back what differs"
        )


def _trained(folder: Path) -> list[Path]:
    """Checkpoints of steps that were trained, and results."""
    return [*folder.glob("checkpoint-[1-9]*"), *folder.glob(RESULTS_FILE)]
