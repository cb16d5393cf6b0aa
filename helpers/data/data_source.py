"""Where the data and the model of a run are from: a hub id, a path of one's own, or a file that is asked for in Colab."""

import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from helpers.parameters import SAMPLE, UPLOAD, expanded, local_or_hub


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Name, digest and draw of a run's data."""

    name: str  # of a path the last part, since results are shared
    sha256: str
    revision: str | None = None  # of a hub id
    draw: str = ""  # how many rows, and the seed

    @property
    def source(self) -> str:
        """The same string means the same data."""
        name = f"{self.name}@{self.revision}" if self.revision else self.name
        return ", ".join(filter(None, (name, self.draw, f"sha256 {self.sha256[:16]}")))

    @property
    def provenance(self) -> dict[str, str | None]:
        """What results.json says of the data: source, revision and digest."""
        return {"source": self.name, "revision": self.revision, "sha256": self.sha256}


def model_folder_or_hub(value: str, info) -> str:
    """As `local_or_hub`, for a model: raises ValueError for a file."""
    if value != SAMPLE and expanded(info.field_name, value).is_file():
        raise ValueError(f"{info.field_name}={value!r} is a file: give the folder of a model, a hub id or {SAMPLE!r}")
    return local_or_hub(value, info)


ModelSource = Annotated[str, AfterValidator(model_folder_or_hub)]


def located(data_source: str) -> str:
    """`data_source` as given, or for "upload" the path of a file that is asked for now. Raises as `uploaded`."""
    return uploaded("data_source") if data_source == UPLOAD else data_source


def uploaded(name: str) -> str:
    """Asks for one file in Colab and returns its path in the working directory; a .zip is unpacked into a folder.

    The same file chosen again is the one that is there already, so that its run goes on. Raises ValueError outside of
    Colab, unless one file was chosen, and for an archive that is damaged.
    """
    try:
        from google.colab import files
    except ImportError:
        raise ValueError(f"{name}={UPLOAD!r} asks for a file in Colab's window; here give the file's path") from None
    chosen = [Path(each) for each in files.upload()]
    if len(chosen) != 1:
        raise ValueError(f"{name}={UPLOAD!r}: {len(chosen)} files were chosen; run the cell again and choose one")
    (path,) = chosen
    first = path.with_name(
        re.sub(r" \(\d+\)(?=\.\w+$|$)", "", path.name)
    )  # Colab names the second copy `texts (1).csv`
    if first != path and first.is_file() and first.read_bytes() == path.read_bytes():
        path.unlink()
        path = first
    if path.suffix.lower() == ".zip":
        path = _unpacked(name, path)
    print(f"{name}={UPLOAD!r}: reading {path}")
    return str(path)


def _unpacked(name: str, path: Path) -> Path:
    try:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(path.with_suffix(""))  # it leaves out `..` and roots
    except zipfile.BadZipFile as error:
        raise ValueError(f"{name}={str(path)!r} is no whole archive ({error}): upload it again") from None
    return path.with_suffix("")
