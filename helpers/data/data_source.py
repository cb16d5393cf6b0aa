"""Where the data of a run is: a hub id, a path of one's own, or a file that is asked for in Colab.

How a room reads its data:

    place = locate(params.data_source)  # .path (absolute, a .zip unpacked) or None; .name; .source, with which errors begin
    if place.is_sample: ...
    # rows: of a file, a folder with train.csv and test.csv, or the hub; a bad one is set aside
    set_aside = SetAside(place.source)
    splits = read_splits(place, SUFFIXES)
    # texts: files.list_files(place.path, (".md", ".txt"), place.source), then files.read_text(file)

A local path is never handed to a library: `datasets` takes some names, such as "text", for its own.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.data import files, hub
from helpers.data.rows import Row, number_rows, read_rows
from helpers.parameters import SAMPLE, UPLOAD, source_path

SPLITS = dict.fromkeys(("test", "testing", "eval", "evaluation"), "test") | {"train": "train", "training": "train"}
SPLITS |= dict.fromkeys(("validation", "valid", "val", "dev"), "validation")

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
    def provenance(self) -> dict[str, str | None]:
        """What results.json says of the data, and what must be the same when a run goes on."""
        return {"source": self.name, "revision": self.revision, "draw": self.draw, "sha256": self.sha256}


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
    """Where the data is. A .zip is unpacked; "upload" asks for a file in Colab now.

    Raises as `source_path`, `uploaded` and `files.unpack`.
    """
    value = uploaded() if data_source == UPLOAD else data_source
    path = source_path("data_source", value)
    name = path.resolve().name if path else value  # the same name for a link
    if path and path.suffix.lower() == ".zip":
        path = files.unpack(path, f"data_source={value!r}")
    return Place(value, name, path)


def read_splits(place: Place, suffixes: Iterable[str], **options: Any) -> dict[str, list[Row]]:
    """The rows of a file, a folder or a hub set by split: train, and validation and test where there are such.

    A file is the split train. In a folder the name of a file, or else of the folder that it is in, says its split, as `test.csv` or
    `data/valid-00000-of-00001.parquet` do; where none is named train, the files that name no split are that. What cannot be read
    is printed.

    options: of `datasets.load_dataset`, for a hub set.

    Raises as `read_rows`, `list_files` and `hub.reading`.
    """
    splits: dict[str, list[Row]] = defaultdict(list)
    if place.path is None:
        import datasets

        with hub.reading(name="data_source", source=place.value):
            for name, rows in datasets.load_dataset(place.value, **options).items():
                splits[_split_of(name)] += number_rows(rows, name)
    elif place.path.is_file():
        splits["train"] = read_rows(place.path, suffixes, place.source)
    else:
        paths, passed_over = files.list_files(place.path, suffixes, place.source)
        print(f"{len(paths):,} files are read; passed over: {dict(passed_over)}")
        for file in paths:
            try:
                splits[_split_of(file.relative_to(place.path))] += read_rows(file, suffixes, file.name)
            except ValueError as error:
                print(f"not read: {error}")
    unnamed = splits.pop("", [])
    if "train" not in splits:
        splits["train"] = unnamed
    elif unnamed:
        print(f"{len(unnamed):,} rows are not used, since their file names no split")
    return splits


def _split_of(path: Path | str) -> str:
    """The split that a path names, the last where it names several, "" if it names none."""
    words = re.findall("[a-z]+", str(path).lower())
    return ["", *(SPLITS[word] for word in words if word in SPLITS)][-1]


def uploaded() -> str:
    """Asks for one file in Colab and returns its path in the working directory.

    A run that has begun to train goes on with its file, which lies in its folder. Raises ValueError outside of Colab, and unless one file was chosen.
    """
    global chosen_upload
    if kept_upload:
        print(f"this run goes on with {kept_upload.name}; for another file set a new output_dir")
        return str(kept_upload)
    try:
        from google.colab import files

        [name] = files.upload()
    except (ImportError, ValueError) as error:
        raise ValueError("data_source='upload' takes one file, in Colab; elsewhere give its path") from error
    chosen_upload = Path(name).absolute()
    return str(chosen_upload)
