"""Typed, checked notebook parameters.

A notebook's parameters cell holds typed literals; the cell after it turns them into one frozen object:
`params = parameters.check(ReservoirParameters, globals())`. Everything wrong with them is found there, before anything
is downloaded. It has to be, because papermill lets through what a person never meant: it warns about an unknown name
and goes on, `-p resume false` gives the string "false" (which is true), and `-y "learning_rate: 1e-3"` the string
"1e-3".
"""

import ast
import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_type_hints

SAMPLE = "sample"
DATA_SUFFIXES = (".txt", ".parquet", ".jsonl", ".json", ".csv", ".tsv")
NOT_IDENTITY = frozenset({"output_dir", "resume", "report_to"})
"""Parameters that say where a run goes and how it is watched, not which run it is."""

# huggingface_hub.utils._validators.REPO_ID_REGEX, with its separate ban on "--" and ".." folded in.
HUB_ID = re.compile(r"(?!.*(--|\.\.))(\b[\w\-.]+\b/)?\b[\w\-.]{1,96}\b")

OWN_CELL = ("# @title Parameters", "#@title Parameters")  # Colab reads both; ruff format writes the first
INJECTED_CELL = "# Parameters"  # papermill.parameterize.parameterize_notebook(comment="Parameters")


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What every notebook is told. A model package subclasses it, adds fields and checks their ranges.

    Fields are `bool`, `int`, `float` or `str`, and their types are checked as annotated. A subclass's `__post_init__`
    calls this one first. Stored values differ from given ones in two ways only: an int given for a float becomes a
    float, and a leading ~ in `data_source` and `output_dir` is expanded.

    Raises:
        ValueError: wrong type, impossible range, unknown choice; names the parameter, its value and the remedy.
        FileNotFoundError: `data_source` is a path and nothing is there.
    """

    not_identity: ClassVar[frozenset[str]] = frozenset()  # a subclass's own that change no training

    data_source: str  # hub id, local path, or "sample"
    output_dir: str  # folder for checkpoints, results and the exported model
    max_steps: int  # optimizer steps; 0 = the recipe's
    batch_size: int  # examples per optimizer step over all devices; 0 = planned
    learning_rate: float  # peak; 0 = the recipe's
    seed: int
    resume: bool  # go on from the newest whole checkpoint in output_dir
    use_tpu: bool
    precision: str  # "auto", "fp32", "bf16", "fp16"
    report_to: str  # "none" or "wandb"

    def __post_init__(self):
        kinds = get_type_hints(type(self))
        for name in (field.name for field in fields(self)):
            object.__setattr__(self, name, typed(name, getattr(self, name), kinds[name]))
        not_negative("max_steps", self.max_steps, "0 means the recipe's number of steps")
        not_negative("batch_size", self.batch_size, "0 means the planned batch size")
        not_negative("learning_rate", self.learning_rate, "0 means the recipe's learning rate")
        in_range("seed", self.seed, 0, 2**32 - 1)
        one_of("precision", self.precision, ("auto", "fp32", "bf16", "fp16"))
        one_of("report_to", self.report_to, ("none", "wandb"))
        if (path := source_path("data_source", self.data_source)) is not None:
            object.__setattr__(self, "data_source", str(path))
        object.__setattr__(self, "output_dir", str(_folder("output_dir", self.output_dir)))


P = TypeVar("P", bound=Parameters)


def check(cls: type[P], namespace: Mapping[str, Any]) -> P:
    """The notebook's parameters as one checked object.

    Args:
        cls: `Parameters` or a subclass.
        namespace: the notebook's `globals()`. Where it holds IPython's `In`, the names assigned in the parameters cell
            and in the cell that papermill injected after it must be fields of `cls`; no other cell is looked at.

    Raises:
        ValueError: an unknown parameter (with the closest names), a missing one, or what `cls` refuses.
        FileNotFoundError: what `cls` refuses.
    """
    names = [field.name for field in fields(cls)]
    for name in _assigned(_parameter_cells(namespace.get("In", []))):
        if name not in names:
            raise ValueError(unknown(name, names))
    missing = [name for name in names if name not in namespace]
    if missing:
        raise ValueError(
            f"{', '.join(missing)}: not set; run the parameters cell first, it must assign every parameter"
        )
    return cls(**{name: namespace[name] for name in names})


def identity(params: Parameters) -> dict[str, bool | int | float | str]:
    """The parameters that define a run: all but where it is written, how it is watched, and what is asked of the model."""
    others = NOT_IDENTITY | params.not_identity
    return {f.name: getattr(params, f.name) for f in fields(params) if f.name not in others}


def typed(name: str, value: Any, kind: type) -> Any:
    """`value` if it is of `kind` (an int for a float becomes a float), with `kind` one of bool, int, float, str.

    Raises:
        ValueError: another type, nan or infinity.
    """
    assert kind in (bool, int, float, str), f"parameter {name}: annotated {kind}, not bool, int, float or str"
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(
            f"{name}={value!r} is of type {type(value).__name__}, not {kind.__name__}: {_fix(name, value, kind)}"
        )
    if kind is float and not math.isfinite(value):
        raise ValueError(
            f"{name}={value!r} is not a finite number: give one, or 0 where 0 stands for the recipe's value"
        )
    return value


def _fix(name: str, value: Any, kind: type) -> str:
    if kind is bool:
        right = "True" if str(value).lower() in ("true", "1", "yes", "on") else "False"
        return f'with papermill write `-p {name} {right}` or `-y "{name}: {right.lower()}"`, in a cell {right} without quotes'
    if kind is str:
        return f"put it in quotes (with papermill: `-r {name} {value}`)"
    if kind is float and isinstance(value, str):
        return f"write it without quotes; papermill's -y reads 1e-3 as text: write 1.0e-3, or `-p {name} {value}`"
    return "write a whole number without quotes or a decimal point" if kind is int else "write a number"


def not_negative(name: str, value: float, remedy: str = "give 0 or more") -> None:
    """ValueError when `value` is below 0."""
    if value < 0:
        raise ValueError(f"{name}={value!r} is negative: {remedy}")


def positive(name: str, value: float, remedy: str = "give more than 0") -> None:
    """ValueError when `value` is 0 or less."""
    if value <= 0:
        raise ValueError(f"{name}={value!r} is not positive: {remedy}")


def in_range(name: str, value: float, low: float, high: float) -> None:
    """ValueError unless `low` <= `value` <= `high`."""
    if not low <= value <= high:
        raise ValueError(f"{name}={value!r} is out of range: give {low} to {high}")


def one_of(name: str, value: Any, choices: Collection[Any]) -> None:
    """ValueError unless `value` is among `choices`."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} is unknown: give one of {', '.join(map(repr, choices))}")


def source_path(name: str, value: str) -> Path | None:
    """The local path that `value` means (~ expanded), or None when it is "sample" or a hub id.

    For every parameter that takes "a hub id, a local path or 'sample'". A path is what starts with ./ ../ / or ~, ends
    in a data suffix, or is there on disk.

    Raises:
        FileNotFoundError: a path with nothing there; names the absolute path that was looked for.
        ValueError: neither a path nor the shape of a hub id.
    """
    if value == SAMPLE:
        return None
    path = _expanded(name, value)
    if value.strip() and path.exists():
        return path
    if value.startswith(("./", "../", "/", "~")) or value.lower().endswith(DATA_SUFFIXES):
        raise FileNotFoundError(
            f"{name}={value!r}: nothing at {path.resolve()}; correct the path, give a hub id or {SAMPLE!r}"
        )
    if not HUB_ID.fullmatch(value):
        raise ValueError(f"{name}={value!r} is neither a path that exists nor a hub id (owner/name) nor {SAMPLE!r}")
    return None


def _expanded(name: str, value: str) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise FileNotFoundError(
            f"{name}={value!r}: no home folder for {Path(value).parts[0]}; write the path out"
        ) from error


def _folder(name: str, value: str) -> Path:
    if not value.strip():
        raise ValueError(f"{name}={value!r} is empty: name a folder, it is made if it is not there")
    path = _expanded(name, value)
    for part in (path, *path.parents):
        if part.exists() and not part.is_dir():
            raise ValueError(f"{name}={value!r}: {part.resolve()} is a file; name a folder")
    return path


def unknown(name: str, names: Iterable[str]) -> str:
    """The error message for a parameter that does not exist, with the closest names that do."""
    names = list(names)
    close = difflib.get_close_matches(name, names)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names)}"
    return f"{name} is not a parameter of this notebook: {hint}"


def _parameter_cells(executed: list[str]) -> list[str]:
    """The parameters cell as last run and the injected one, out of IPython's `In`.

    An injected cell that ran before the parameters cell was run again no longer says what the values are.
    """
    own = max((i for i, source in enumerate(executed) if source.startswith(OWN_CELL)), default=None)
    after = 0 if own is None else own
    injected = [s for s in executed[after:] if s.partition("\n")[0].rstrip() == INJECTED_CELL]
    return ([] if own is None else [executed[own]]) + injected[-1:]


def _assigned(cells: Iterable[str]) -> list[str]:
    """Names assigned at top level, in order."""
    statements = [node for source in cells for node in ast.parse(source, "<parameters cell>").body]
    targets = [target for node in statements if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in statements if isinstance(node, ast.AnnAssign)]
    walked = [node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
    return [node.id for node in walked if isinstance(node.ctx, ast.Store)]
