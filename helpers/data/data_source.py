"""Where the data and the model of a run are from: a hub id, a path of one's own, or a file that is asked for in Colab.

How a room reads its data:

    place = locate(params.data_source)  # .path (absolute, a .zip unpacked) or None; .name; .source, with which errors begin
    if place.is_sample: ...
    # rows: of a file, a folder with train.csv and test.csv, or the hub; a bad one is set aside
    set_aside = SetAside(place.source)
    splits = read_splits(place, SUFFIXES, set_aside)
    # texts: listing.list_files(place.path, (".md", ".txt"), source=place.source), then text.read_text(file)

See `rows`, `listing` and `text`. A local path is never handed to a library: `datasets` takes some names, such as "text", for its own.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from helpers.data import archive, hub
from helpers.data.listing import list_files
from helpers.data.rows import Row, SetAside, number_rows, read_rows
from helpers.parameters import SAMPLE, UPLOAD, local_or_hub, source_path

SPLITS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}


# Of data_source="upload": the file that a person chose in this session, and the one that the run in output_dir began with.
chosen_upload: Path | None = None
kept_upload: Path | None = None


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
    path = source_path(info.field_name, value)
    if path and path.is_file():
        raise ValueError(f"{info.field_name}={value!r} is a file: give the folder of a model, a hub id or {SAMPLE!r}")
    return local_or_hub(value, info)


ModelSource = Annotated[str, AfterValidator(model_folder_or_hub)]


@dataclass(frozen=True)
class Place:
    """Where the data of a run is: a file or folder of one's own, the hub, or the sample."""

    value: str  # of the parameter
    name: str  # of a path the last part, since results are shared; else the value
    path: Path | None = None  # absolute; of a .zip the folder that it is unpacked into

    @property
    def source(self) -> str:
        """The parameter and its value, with which an error begins."""
        return f"data_source={self.value!r}"

    @property
    def is_sample(self) -> bool:
        return self.value == SAMPLE


def locate(data_source: str) -> Place:
    """Where the data is. A .zip is unpacked; "upload" asks for a file in Colab now. Says in one line what is read.

    Raises as `source_path`, `uploaded` and `archive.unpack`.
    """
    value = uploaded("data_source") if data_source == UPLOAD else data_source
    path = source_path("data_source", value)
    if path is None:
        if value == SAMPLE and Path(SAMPLE).exists():
            print(f"data_source={value!r} is the sample; for a file or folder of this name write './{SAMPLE}'")
        return Place(value, value)
    name = path.resolve().name  # the same for a link
    if path.suffix.lower() == ".zip" and path.is_file():
        path = archive.unpack(path, source=f"data_source={value!r}")
    if str(path) != data_source:
        print(f"data_source={data_source!r} is read from {path}")
    return Place(value, name, path)


def read_splits(
    place: Place, suffixes: Sequence[str], set_aside: SetAside, **options: Any
) -> Mapping[str, Iterable[Row]]:
    """The rows of a file, a folder or a hub set by split: train, and validation and test where there are such.

    A file is the split train. In a folder the name of a file, or of the folder that it is in, says its split, as `test.csv` or
    `data/valid-00000-of-00001.parquet` do; where none is named train, the files that name no split are that. A file that
    cannot be read is named in the list that is printed.

    options: of `datasets.load_dataset`, for a hub set.

    Raises as `read_rows`, `list_files` and `hub.splits`; ValueError where no training rows are left.
    """
    if place.path is None:
        numbered = {}
        for name, split in hub.splits(place.value, **options).items():
            if name in SPLITS:
                numbered[SPLITS[name]] = number_rows(f"{place.source}, {name}", split, set_aside)
        return numbered
    if place.path.is_file():
        return {"train": read_rows(place.path, suffixes, set_aside)}
    listing = list_files(place.path, suffixes, source=place.source)
    split_of = {file: _split_of(listing.name(file)) for file in listing.files}
    if "train" in split_of.values():
        for file, name in split_of.items():
            if not name:
                listing.skip(file, "its name is not one of train, validation and test")
    splits: dict[str, list[Row]] = {}
    for file in list(listing.files):
        of_file, source = SetAside(place.source), f"{place.source}, {listing.name(file)}"
        try:
            rows = list(read_rows(file, suffixes, of_file, source=source))
        except (ValueError, OSError) as error:
            listing.skip(file, str(error).removeprefix(source).lstrip(" ,:"))
        else:
            splits.setdefault(split_of[file] or "train", []).extend(rows)
            set_aside.extend(of_file)
    print(listing)
    if "train" not in splits:
        raise ValueError(
            f"{place.source}: no training rows can be read; call their file train, as in train.csv.\n{listing}"
        )
    return splits


def _split_of(name: str) -> str:
    """The split that a path names, "" if it names none."""
    for word in re.split(r"[^a-z]+", name.lower()):
        if word in SPLITS:
            return SPLITS[word]
    return ""


def uploaded(name: str) -> str:
    """Asks for one file in Colab and returns its path in the working directory.

    A run that has begun to train goes on with its file, which lies in its folder. Raises ValueError outside of Colab, and unless one file was chosen.
    """
    global chosen_upload
    if kept_upload:
        print(
            f"{name}={UPLOAD!r}: this run began with {kept_upload.name} and goes on with it; for another file set a new output_dir"
        )
        return str(kept_upload)
    try:
        from google.colab import files
    except ImportError:
        raise ValueError(f"{name}={UPLOAD!r} works in Colab only; here give the path of the file") from None
    chosen = [Path(name) for name in files.upload()]
    if len(chosen) != 1:
        raise ValueError(f"{name}={UPLOAD!r}: {len(chosen)} files were chosen; run the cell again and choose one")
    chosen_upload = chosen[0].absolute()
    return str(chosen[0])
