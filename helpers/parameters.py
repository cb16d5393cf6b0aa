"""Notebook parameters, each declared once: the cell, its form, the docs and the checks come from the declaration.

    class LegalParameters(Parameters):
        lora_rank: int = parameter(16, "Rank of the adapters.", group="Training", low=1, high=4096)

`tools/notebooks.py` writes the parameters cell from such a class; the cell after it turns the values into one frozen
object: `params = parameters.check(LegalParameters, globals())`. It finds every mistake before anything is downloaded.
papermill only warns about an unknown name, makes `-p resume false` the string "false" (which is true), and
`-y "learning_rate: 1e-3"` the string "1e-3".
"""

import ast
import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo

SAMPLE, UPLOAD = "sample", "upload"
DRIVE = "drive"  # a value of keep_in
DATA_SUFFIXES = (".txt", ".md", ".parquet", ".jsonl", ".json", ".csv", ".tsv", ".zip")
NO_NETWORK = "Without a network set both data_source and base_model to 'sample'."
LARGEST = 10**9  # an int without a `high`
LENGTH = ("max_steps", "patience")  # may change when a run is resumed
MAIN, MACHINE = "Main", "Machine and logging"

# huggingface_hub.utils._validators.REPO_ID_REGEX, with its separate ban on "--" and ".." folded in.
HUB_ID = re.compile(r"(?!.*(--|\.\.))(\b[\w\-.]+\b/)?\b[\w\-.]{1,96}\b")

OWN_CELL = ("# @title Parameters", "#@title Parameters")  # Colab reads both; ruff format writes the first
INJECTED_CELL = "# Parameters"  # papermill.parameterize.parameterize_notebook(comment="Parameters")


def parameter(
    default: Any,
    description: str,
    *,
    group: str = MAIN,
    low: float | None = None,
    high: float | None = None,
    suggestions: Collection[Any] = (),
    identity: bool = True,
    tpu: Any = None,
) -> Any:
    """One parameter: its default, meaning and range. A closed list of choices is a `Literal` annotation.

    Args:
        default: in the GPU twin; `tpu` is the default in the TPU twin if it differs.
        description: one or two sentences, shown in the form and in the docs.
        group: its heading; "Main" holds at most eight.
        low, high: at least, at most (for an int `LARGEST` by default).
        suggestions: values that the form offers; others may be given.
        identity: False if it may change when a run is resumed, such as how the run is shown.
    """
    if high is None and type(default) is int:
        high = LARGEST
    extra = {"group": group, "suggestions": [*suggestions], "identity": identity, "tpu": tpu}
    return Field(default, description=description, ge=low, le=high, json_schema_extra=extra)


def source_path(name: str, value: str) -> Path | None:
    """The local path `value`, absolute, or None if it is "sample", "upload" or a hub id.

    A path starts with ./ ../ / or ~, ends in a data suffix, or exists. A data set of the hub is owner/name: some names without
    an owner, such as "text", mean the files of the working directory to the library `datasets`.

    Raises FileNotFoundError for what is neither; ValueError for what cannot be a path, a device or a pipe.
    """
    if value in (SAMPLE, UPLOAD):
        return None
    path = expanded(name, value)
    if value.strip() and path.exists():
        if path.is_file() or path.is_dir():
            return path.absolute()
        raise ValueError(f"{name}={value!r} is neither a file nor a folder: name one")
    is_file = value.lower().endswith(DATA_SUFFIXES)
    is_path = is_file or value.startswith(("./", "../", "/", "~"))
    has_owner = name != "data_source" or "/" in value
    if is_path or not has_owner or not HUB_ID.fullmatch(value):
        raise FileNotFoundError(
            f"{name}={value!r}: nothing at {path.resolve()}, and it is no hub id (owner/name); correct it, or set it to {SAMPLE!r}"
        )
    return None


def expanded(name: str, value: str) -> Path:
    """`value` with ~ expanded. Raises ValueError if it cannot be a path."""
    try:
        path = Path(value).expanduser()
        path.resolve().exists()
        return path
    except (OSError, ValueError, RuntimeError) as error:  # too long, with NUL in it, or ~ without a home
        raise ValueError(
            f"{name}={value[:200]!r} is no path ({getattr(error, 'strerror', error)}); write the path out"
        ) from None


def local_or_hub(value: str, info) -> str:
    """Validates a hub id, "sample" or a path, which it makes absolute. Raises as `source_path`."""
    return str(source_path(info.field_name, value) or value)


Source = Annotated[str, AfterValidator(local_or_hub)]


class Parameters(BaseModel):
    """The parameters of every notebook. The subclass of a model adds its own, with validators, and may set other defaults.

    Values are not converted, except an int for a float and a leading ~ in a path.

    Raises:
        ValueError: a wrong type, a value out of range, an unknown choice.
        FileNotFoundError: a parameter is a path that does not exist.
    """

    least_batch: ClassVar[int] = 1  # examples that a step needs
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False, str_max_length=100_000)

    data_source: Source = parameter(SAMPLE, "Hub data set, path to your own data, or 'sample', which needs no network.")
    output_dir: str = parameter("outputs/run", "Folder for checkpoints, results and the trained model.", identity=False)
    max_steps: int = parameter(0, "Optimizer steps; 0 takes the number of the recipe.", low=0)
    batch_size: int = parameter(
        0, "Examples in one optimizer step, over all devices; 0 takes the planned number.", low=0
    )
    learning_rate: float = parameter(0.0, "Peak learning rate; 0 takes that of the recipe.", low=0)
    seed: int = parameter(0, "Seed of the initial weights, the order of the data and dropout.", low=0, high=2**32 - 1)
    max_hours: float = parameter(
        0.0, "Hours after which this session saves and stops; 0 sets no limit.", group=MACHINE, low=0, identity=False
    )
    keep_in: str = parameter(
        "",
        "Second place for checkpoints and results, from which a new machine continues: 'drive' (Google Drive, in Colab) or a "
        "folder that outlasts this machine; empty keeps them on this machine only.",
        group=MACHINE,
        suggestions=("", "drive"),
        identity=False,
    )
    resume: bool = parameter(
        True, "Continue from the newest whole checkpoint in output_dir.", group=MACHINE, identity=False
    )
    use_tpu: bool = parameter(
        False, "Prefer a TPU; where there is none, the run uses a GPU or the CPU.", group=MACHINE, tpu=True
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = parameter(
        "auto", "Number format of the matrix products; 'auto' takes the best that the device has.", group=MACHINE
    )
    report_to: Literal["none", "wandb"] = parameter(
        "none",
        "Where metrics go: 'wandb' needs WANDB_API_KEY among the runtime's secrets.",
        group=MACHINE,
        identity=False,
    )

    def __init__(self, **values):
        try:
            super().__init__(**values)
        except ValidationError as error:
            messages = [in_words(detail, type(self).model_fields) for detail in error.errors()]
            raise ValueError("\n".join(messages)) from None

    @field_validator("batch_size")
    @classmethod
    def _is_enough(cls, value: int) -> int:
        if 0 < value < cls.least_batch:
            raise ValueError(f"batch_size={value}: set at least {cls.least_batch}, since texts are compared, or 0")
        return value

    @field_validator("output_dir", "keep_in")
    @classmethod
    def _is_a_folder(cls, value: str, info) -> str:
        name = info.field_name
        if name == "keep_in" and value in ("", DRIVE):
            return value
        path = expanded(name, value)
        if not value.strip() or any(part.is_file() for part in (path, *path.parents)):
            raise ValueError(
                f"{name}={value!r} is empty, a file, or below one: name a folder; it is made if it is not there"
            )
        return str(path)

    @classmethod
    def defaults(cls):
        """The parameters with their defaults, without looking at the disk."""
        return cls.model_construct()


P = TypeVar("P", bound=Parameters)


def check(cls: type[P], namespace: Mapping[str, Any]) -> P:
    """The notebook's parameters as one checked object.

    namespace: the notebook's `globals()`. If IPython's `In` is in it, all names that the parameters cell, and the cell that
        papermill injected after it, assign must be parameters of `cls`.

    Raises ValueError for an unknown parameter (with the closest names) or a missing one, and what `cls` raises.
    """
    fields = cls.model_fields
    for name in _assigned(namespace.get("In", [])):
        if name not in fields:
            raise ValueError(unknown(name, fields))
    missing = [name for name in fields if name not in namespace]
    if missing:
        raise ValueError(
            f"{', '.join(missing)}: not set; run the parameters cell first, it must assign every parameter"
        )
    return cls(**{name: namespace[name] for name in fields})


def identity(params: Parameters) -> dict[str, bool | int | float | str]:
    """The parameters that define a run: all but its length, its folder and how it is watched; of a path its last part."""
    values = {}
    for name, field in type(params).model_fields.items():
        value = getattr(params, name)
        if name in ("data_source", "base_model"):
            path = source_path(name, value)
            value = path.resolve().name if path else value
        if extra(field)["identity"] and name not in LENGTH:
            values[name] = value
    return values


def extra(field: FieldInfo) -> Any:
    """What `parameter` notes in a field besides pydantic's own."""
    return field.json_schema_extra


def in_words(error: Mapping[str, Any], fields: Mapping[str, FieldInfo]) -> str:
    """One of pydantic's errors as `parameter=value: what is wrong`, with what the parameter is for."""
    if error["type"] == "value_error":  # raised by a validator of ours
        return str(error["ctx"]["error"])
    name = error["loc"][0]
    if name not in fields:
        return unknown(name, fields)
    hint = fields[name].description
    if isinstance(error["input"], str) and error["type"].endswith("_type"):
        hint = "write it without quotes"
    return f"{name}={repr(error['input'])[:200]}: {error['msg']}; {hint}"


def unknown(name: str, parameters: Iterable[str]) -> str:
    """The error message for an unknown parameter, with the closest names."""
    hint = did_you_mean(name, parameters) or f"there are {', '.join(parameters)}"
    return f"{name} is not a parameter of this notebook: {hint.strip()}"


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """A question with the closest choices, or ""."""
    close = difflib.get_close_matches(name, list(choices))
    return f"did you mean {' or '.join(close)}? " if close else ""


def _assigned(executed: list[str]) -> set[str]:
    """Names that the parameters cell as last run, and the cell injected after that, assign; from IPython's `In`."""
    code = ""
    for source in reversed(executed):
        if source.startswith((*OWN_CELL, f"{INJECTED_CELL}\n")):
            code += f"{source}\n"
        if source.startswith(OWN_CELL):
            break
    nodes = ast.walk(ast.parse(code))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
