"""Parameters that name a file or the folder of a model."""

from typing import Annotated

from pydantic import AfterValidator

from helpers.parameters import SAMPLE, expanded, local_or_hub


def existing_file(name: str, value: str, remedy: str) -> str:
    """Path of the file `value`, with ~ expanded. Raises FileNotFoundError, with the remedy, if there is none."""
    path = expanded(name, value)
    if not path.is_file():
        raise FileNotFoundError(f"{name}={value!r}: nothing at {path.resolve()}; {remedy}")
    return str(path)


def model_folder_or_hub(value: str, info) -> str:
    """As `local_or_hub`, for a model: raises ValueError for a file."""
    if value != SAMPLE and expanded(info.field_name, value).is_file():
        raise ValueError(f"{info.field_name}={value!r} is a file: give the folder of a model, a hub id or {SAMPLE!r}")
    return local_or_hub(value, info)


ModelSource = Annotated[str, AfterValidator(model_folder_or_hub)]
