"""A stand-in for Colab: a module `google.colab`, and a Google Drive that loses, waits, fills up and drops.

The module is put into a process by `pretend`. What the machine sees of the Drive is the folder `mounted`; `cloud` has what was
uploaded, in any order, when the machine died. The file `state` says how the mounted Drive answers: "late", "full", "gone" or "".
"""

import errno
import importlib.machinery
import os
import random
import shutil
import subprocess
import sys
import time
import types
from pathlib import Path

MOUNT_POINT = Path("/content/drive")
FAILURES = {"full": errno.ENOSPC, "gone": errno.ENOTCONN}


class Drive:
    """A Google Drive: as a machine sees it, and as it is in the cloud."""

    def __init__(self, folder: Path):
        self.folder, self.mounted, self.cloud = folder, folder / "mounted", folder / "cloud"
        for path in (self.mounted, self.cloud):
            (path / "MyDrive").mkdir(parents=True, exist_ok=True)

    def answer(self, state: str) -> None:
        (self.folder / "state").write_text(state)

    def upload(self, chance: random.Random | None = None) -> None:
        """Brings all changes to the cloud, or those for which `chance` decides, as when the machine dies."""
        names = {
            path.relative_to(side) for side in (self.mounted, self.cloud) for path in side.rglob("*") if path.is_file()
        }
        for name in sorted(names):
            if chance is None or chance.random() < 0.5:
                (self.cloud / name).parent.mkdir(parents=True, exist_ok=True)
                try:
                    shutil.copyfile(self.mounted / name, self.cloud / name)
                except FileNotFoundError:  # removed by now
                    (self.cloud / name).unlink(missing_ok=True)

    def new_machine(self) -> None:
        """Another machine mounts what is in the cloud."""
        shutil.rmtree(self.mounted)
        shutil.copytree(self.cloud, self.mounted)


def pretend(folder: Path) -> None:
    """Makes this process one of a Colab runtime with the Drive in `folder`."""
    drive = Drive(folder)

    def mount(point: str) -> None:
        Path(point).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", drive.mounted, point], check=True)

    def answers(event: str, arguments: tuple) -> None:
        if event not in ("open", "os.scandir", "os.listdir", "os.rename") or not str(arguments[0]).startswith(places):
            return
        while (state := read_state()) == "late":
            time.sleep(0.02)
        if state in FAILURES and (state == "gone" or event == "os.rename"):
            raise OSError(FAILURES[state], os.strerror(FAILURES[state]))

    def read_state() -> str:
        return state.read_text() if state.exists() else ""

    state, places = folder / "state", (str(drive.mounted), str(MOUNT_POINT))
    sys.modules["google.colab"] = module(drive=types.SimpleNamespace(mount=mount))
    sys.addaudithook(answers)


def module(**parts: object) -> types.ModuleType:
    """The module `google.colab` with these parts."""
    made = types.ModuleType("google.colab")
    made.__spec__ = importlib.machinery.ModuleSpec("google.colab", None)
    vars(made).update(parts)
    return made
