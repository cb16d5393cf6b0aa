"""The folder of one run, which no other run overwrites.

`run.json` holds what defines the run: its notebook, parameters, data and the digest of its method's file; another run is
refused. `sessions.json` records the machine and the code of each part of the run.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import helpers
from helpers.data import data_source
from helpers.data.files import JUNK, RUN_FILE
from helpers.machine import ranks, xla
from helpers.machine.runtime import Runtime
from helpers.notebook import method
from helpers.parameters import UPLOAD, Parameters, expanded, identity
from helpers.show import tracking

from . import checkpoint, disk, folder_lock, mirror, provenance
from .disk import write_json
from .mirror import RESULTS_FILE, UPLOADED, Mirror

SESSIONS_FILE = "sessions.json"
# If one of these differs, a resumed run is not bit for bit the same.
COMPARED = ("kind", "device", "devices", "precision", "payload", *provenance.LIBRARIES)
METHOD_FOLDER, PROGRAMS_FOLDER = "method", "compiled"
OF_A_RUN = re.compile(
    rf"checkpoint-\d+|{UPLOADED}|{METHOD_FOLDER}|{PROGRAMS_FOLDER}|figures|\w+\.(json|yaml)|{folder_lock.LOCK_FILE}"
)  # what may be there before a step is trained
RESULTS_SCHEMA = 2


class RunFolder:
    """The folder of one run: its absolute path, whose it is, the method's file that it trains, its results.

    path: absolute, whatever `%cd` does later. method: where the cell that shows the method writes its file.
    """

    def __init__(self, path: Path, notebook: str, params: Parameters):
        self.path, self.claimed, self.notebook, self.params = path, path, notebook, params
        self.method = self._staged_method()
        self.trained_method: dict[str, Any] = {}
        self.source = ""
        self.mirror: Mirror | None = None

    @classmethod
    def claim(cls, notebook: str, params: Parameters) -> RunFolder:
        """Creates `params.output_dir` for a new run, or takes it for the same run again, which has the same `identity`.

        A folder belongs to a run from its first trained step or its results on; before that other parameters may have it.

        Raises:
            ValueError: the folder holds another run, or files that are no run of ours; or it holds this run, and `resume` is
                False.
            PermissionError: the folder cannot be written.
            FolderTaken: another process owns the folder.
        """
        path = expanded("output_dir", params.output_dir).absolute()
        run = cls(path, notebook, params)
        run._take({"notebook": notebook, "parameters": identity(params)})
        newest = checkpoint.listed(path)[:1]
        beginning = f"goes on from {newest[0].name}" if newest else "begins at step 0"
        tracking.say(f"output_dir: the run {beginning}")
        if not params.keep_in:
            mirror.warn(path)
        tracking.hide_bars()
        return run

    def _take(self, definition: dict[str, Any]) -> None:
        """Makes `path` the folder of the run `ours`, as `claim` says, with what a second place has of it."""
        folders = {"output_dir": self.path}
        if not self.mirror:
            place = mirror.place_of(self.params.keep_in, self.path)
            if place:
                folders["keep_in"] = place
        disk.require_mount("output_dir", self.path)
        runs = {name: _same_run(name, folder, definition, self.params) for name, folder in folders.items()}
        if not self.mirror:
            mirror.close_current()
        for name, folder in folders.items():
            folder_lock.own(folder, name)
            if runs[name] is None:  # what another run left there, which trained nothing
                for untrained in checkpoint.listed(folder):
                    disk.remove(untrained)
                (folder / SESSIONS_FILE).unlink(missing_ok=True)
        if "keep_in" in folders:
            mirror.restore(folders["keep_in"], self.path)
        run = (runs["output_dir"] or runs.get("keep_in") or {}) | definition
        if disk.read_json(self.path / RUN_FILE) != run:
            write_json(self.path / RUN_FILE, run)
        is_launched = ranks.count() > 1  # by a kernel in which the file was chosen
        data_source.kept_upload = None
        if is_launched or _progress(self.path):
            data_source.kept_upload = self._upload()
        if "keep_in" in folders:
            self.mirror = Mirror(self.path, folders["keep_in"])

    def _upload(self) -> Path | None:
        """The uploaded file that a run began with, if it is whole."""
        folder = self.path / UPLOADED
        for file in folder.glob("*"):
            if file.name != checkpoint.MANIFEST and checkpoint.damage(folder) is None:
                return file
        return None

    def _leave(self, path: Path) -> None:
        """Gives up a folder that was claimed for a run which goes elsewhere; removes it if the claim is all that it holds."""
        folders = [path]
        if self.mirror:
            self.mirror.close()
            folders.append(self.mirror.place)
            self.mirror = None
        for folder in folders:
            folder_lock.release(folder)
            entries = [entry.name for entry in folder.iterdir()]
            if entries == [RUN_FILE]:
                shutil.rmtree(folder)

    def _staged_method(self) -> Path | None:
        if not getattr(helpers, "shown", None):
            return None
        module, _ = method.shown()
        file = Path(tempfile.mkdtemp(prefix="method-")) / f"{module.rpartition('.')[2]}.py"
        method.write_silently(file)
        return file

    def use_method(self) -> None:
        """Imports the notebook's method from the file that its cell wrote, which becomes a part of this run.

        An edited file is another run: it gets a folder of its own, `<output_dir>-edited-<digest>`, and one line says so.

        Raises ValueError if this folder holds a run of another file, and what `claim` raises.
        """
        assert self.method  # a notebook has one
        module, built = method.shown()
        text = self.method.read_text(encoding="utf-8")
        compile(text, self.method.name, "exec")  # a SyntaxError names the line of the cell
        digest = method.digest(text)
        before, self.path = self.path, self.claimed
        message = f"{self.method.name} is trained as it was shown"
        if digest != built:
            self.path = self.claimed.with_name(f"{self.claimed.name}-edited-{digest[:8]}")
            message = (
                f"{self.method.name} was edited: this run trains your version, in a folder of its own, {self.path}"
            )
        if self.path != before:
            self._leave(before)
        run = {"notebook": self.notebook, "parameters": identity(self.params), "method": {module: digest}}
        self._take(run)
        if self.source:  # was noted in the folder that this run leaves
            self.same_data(self.source)
        file = self.path / METHOD_FOLDER / self.method.name
        sources = {path.name: path.read_bytes() for path in method.room_of(module).glob("*.py")}
        sources[file.name] = text.encode()
        file.parent.mkdir(exist_ok=True)
        for name, content in sources.items():
            with disk.replacing(file.with_name(name)) as temporary:
                temporary.write_bytes(content)
        method.use(module, file)
        xla.keep_programs(self.path / PROGRAMS_FOLDER)
        self.trained_method = {"file": f"{METHOD_FOLDER}/{file.name}", "sha256": digest, "edited": digest != built}
        tracking.say(message)

    def same_data(self, source: str) -> None:
        """Notes the data of a run (`source`, with a digest); a run with checkpoints must find the same data.

        The same parameters can mean other data: a file that was edited, a data set without a pinned revision.

        Raises ValueError: the folder holds checkpoints of a run on other data.
        """
        self.source = source
        chosen = data_source.chosen_upload
        if self.params.data_source == UPLOAD and chosen and not data_source.kept_upload:
            staging = self.path / f".staging-{UPLOADED}"
            disk.copy(chosen, staging / chosen.name)
            checkpoint.publish(staging, self.path / UPLOADED)
        run = _first_json(self.path, RUN_FILE, dict)
        before = run.get("data")
        if before == source:
            return
        if before is not None and _progress(self.path):
            raise ValueError(
                f"data_source: the data has changed since the run in output_dir={str(self.path)!r} began ({before} there, "
                f"{source} here), and its checkpoints are for the former; nothing was touched: restore the data, or set "
                "output_dir to a new folder"
            )
        write_json(self.path / RUN_FILE, run | {"data": source})

    def results(self, runtime: Runtime, **parts: Any) -> Path:
        """Writes `results.json` (docs/architecture.md lists its keys) and returns its path.

        parts: `data` with source, revision and sha256, `eval`, `artifacts` and whatever else the notebook measured.
        """
        folder_lock.check(self.path)
        code: dict[str, Any] = provenance.code()
        if self.trained_method:
            code["method"] = self.trained_method
        results = {
            "schema": RESULTS_SCHEMA,
            "notebook": self.notebook,
            "seed": self.params.seed,
            "parameters": self.params.model_dump(),
            "code": code,
            "versions": provenance.versions(),
            "sessions": sessions(self.path),
            "runtime": runtime.results(),
            **parts,
        }
        write_json(self.path / RESULTS_FILE, results)
        if self.mirror:
            self.mirror.say_finished()
        return self.path / RESULTS_FILE


def _same_run(name: str, path: Path, definition: dict[str, Any], params: Parameters) -> dict[str, Any] | None:
    """What a folder, which is made if need be, says of this run; None if nothing was trained there.

    Raises PermissionError and ValueError as `RunFolder.claim` says; `name` is the parameter of the folder.
    """
    elsewhere = f"nothing was touched: set {name} to a new folder (now {str(path)!r})"
    if path.is_symlink() and not path.exists():
        raise ValueError(
            f"{name}={str(path)!r} is a link to {str(path.readlink())!r}, which is not there: mount its disk, or set {name} to another folder"
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
        entries = sorted(entry.name for entry in path.iterdir() if not JUNK.fullmatch(entry.name))
        if not os.access(path, os.W_OK):
            raise PermissionError("no write permission")
    except OSError as error:
        raise PermissionError(f"{name}={str(path)!r} cannot be written ({error}); {elsewhere}") from error
    progress = _progress(path)
    recorded = _first_json(path, RUN_FILE, dict)
    if recorded is None:
        if not progress and all(map(OF_A_RUN.fullmatch, entries)):
            return None
        examples = ", ".join(entries[:4])
        if len(entries) > 4:
            examples += ", ..."
        raise ValueError(
            f"{name}={str(path)!r} holds files that are no run of this suite, or one whose {RUN_FILE} is lost "
            f"({examples}); {elsewhere}"
        )
    differences = _differences(recorded, definition, params)
    if not progress:
        return None if differences else recorded
    if differences:
        raise ValueError(
            f"{name}={str(path)!r} belongs to another run ({'; '.join(differences)}); {elsewhere}, or set the parameters back to "
            "resume that run"
        )
    if not params.resume:
        raise ValueError(
            f"resume=False, but {name}={str(path)!r} already holds this run; set resume=True to continue it; {elsewhere}"
        )
    return recorded


def _first_json(path: Path, name: str, kind: type) -> Any:
    """What a file of a run's folder holds, or its copy in the newest checkpoint if it is lost; None if there is neither."""
    for folder in (path, *checkpoint.listed(path)):
        with contextlib.suppress(OSError):  # the next one may be read
            value = disk.read_json(folder / name)
            if value and isinstance(value, kind):
                return value
    return None


def _progress(path: Path) -> bool:
    """Whether the folder holds results, or a checkpoint of a step that was trained."""
    checkpoints = checkpoint.listed(path) + checkpoint.listed(path, checkpoint.DAMAGED)
    return any(map(checkpoint.step_of, checkpoints)) or (path / RESULTS_FILE).exists() or bool(checkpoint.renamed(path))


def sessions(output_dir: str | Path) -> list[dict[str, Any]]:
    """The sessions of a run so far, oldest first."""
    return _first_json(Path(output_dir), SESSIONS_FILE, list) or []


def begin_session(
    output_dir: str | Path, runtime: Runtime, precision: str, first_step: int, batch_size: int = 0
) -> str:
    """Notes that a session begins at `first_step`; returns a line about what differs from the one before, or "".

    Raises ValueError if `batch_size`, the examples in a step, differs: the data would not continue at the same place.
    """
    earlier = [entry for entry in sessions(output_dir) if entry["first_step"] <= first_step and first_step]
    session = {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "kind": runtime.kind,
        "device": runtime.device_name,
        "devices": runtime.device_count,
        "precision": precision,
        "batch_size": batch_size,
        "payload": provenance.payload(),
        **provenance.versions(),
        "first_step": first_step,
    }
    before = earlier[-1] if earlier else session
    if before.get("batch_size", batch_size) != batch_size:
        raise ValueError(
            f"batch_size={batch_size} examples a step on {runtime.device_count} device(s), but this run began with "
            f"{before['batch_size']} on {before['devices']}; set that number again, or set output_dir to a new folder"
        )
    path = Path(output_dir) / SESSIONS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, [*earlier, session])
    changed = []
    for name in COMPARED:
        if before.get(name) != session.get(name):
            changed.append(f"{name} {str(before.get(name))[:40]}, now {str(session.get(name))[:40]}")
    if not changed:
        return ""
    return f"ATTENTION: this run goes on under other conditions ({'; '.join(changed)}): not bit for bit the run of one session"


def copy_identity(output_dir: Path | str, written: Path) -> None:
    """Copies what defines the run of a folder into a checkpoint of it, should the files themselves be lost."""
    for name in (RUN_FILE, SESSIONS_FILE):
        if (Path(output_dir) / name).is_file():
            shutil.copyfile(Path(output_dir) / name, written / name)


def saved(figure, path: str | Path):
    """The figure, which is also written to `path`."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return figure


def _differences(recorded: Mapping, definition: Mapping, params: Parameters) -> list[str]:
    """How another run differs from ours, in words. A parameter that is new since that run began had its default there."""
    if recorded.get("notebook") != definition["notebook"]:
        return [f"notebook {recorded.get('notebook')!r} there, {definition['notebook']!r} here"]
    fields = type(params).model_fields
    before, now = recorded.get("parameters"), definition["parameters"]
    if not isinstance(before, dict):
        before = {}
    differences = []
    for name in sorted({*now, *(before.keys() - fields.keys())}):
        default = fields[name].default if name in fields else None
        if before.get(name, default) != now.get(name):
            differences.append(f"{name}={before.get(name)!r} there, {now.get(name)!r} here")
    methods = recorded.get("method"), definition.get("method")
    if all(methods) and methods[0] != methods[1]:
        differences.append("another text of the method's file")
    return differences
