"""A notebook's parameters, their values on a command line, and the grid of runs that these make."""

import ast
import contextlib
import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ConfigDict, TypeAdapter, ValidationError

from helpers.parameters import SAMPLE, source_path, unknown

from . import records

KINDS = {"bool": bool, "int": int, "float": float, "str": str}
LONGEST_NAME = 120  # file systems allow 255 bytes a name


@dataclass(frozen=True)
class Run:
    """One combination of values: what the notebook is given, what the run is made of, and the folder that records it."""

    notebook: Path
    parameters: dict[str, Any]
    identity: dict[str, Any]
    folder: Path


def inspect(notebook: Path) -> dict[str, dict[str, str]]:
    """The notebook's parameters as papermill infers them: name -> {name, inferred_type_name, default, help}.

    Raises FileNotFoundError for a notebook that does not exist, and ValueError if it has no parameter `output_dir`.
    """
    from papermill import inspect_notebook

    if not notebook.is_file():
        raise FileNotFoundError(f"notebook={str(notebook)!r}: no such file; check the path")
    parameters = inspect_notebook(literal_path(notebook))
    if "output_dir" not in parameters:
        raise ValueError(
            f"{notebook}: a cell with the tag 'parameters' must assign output_dir; add the tag or the line"
        )
    return parameters


def parse(assignments: Sequence[str]) -> dict[str, list[Any]]:
    """Command-line `name=value` and `name=v1,v2` as a list of values for each name.

    A text in double quotes, as in JSON, is one value, and a JSON list holds the values one by one.
    Raises ValueError for a name that is given twice, and for anything else that cannot be understood.
    """
    values: dict[str, list[Any]] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or name in values:
            raise ValueError(f"{assignment!r}: write name=value or name=value1,value2, and each name once")
        values[name] = text.split(",")
        if text.startswith(("[", '"')):
            try:
                value = json.loads(text)
            except json.JSONDecodeError as error:
                remedy = f"""write {name}='["a, b", "c"]' or {name}='"a, b"'"""
                raise ValueError(f"{name}={text!r} is not JSON ({error}): {remedy}") from error
            values[name] = [value]
            if isinstance(value, list):
                values[name] = value
        if not values[name]:
            raise ValueError(f"{name}={text}: give a value")
    return values


def typed(declared: Mapping[str, Mapping[str, str]], name: str, value: Any) -> Any:
    """The value, or what a text stands for, in the type that the notebook declares.

    Raises ValueError for an unknown name, a type that is not in KINDS, and a value that is not of the type.
    """
    if name not in declared:
        raise ValueError(unknown(name, declared))
    kind = declared[name]["inferred_type_name"]
    if kind not in KINDS:
        raise ValueError(f"{name} is annotated {kind} in the notebook: use one of {', '.join(KINDS)}")
    try:
        return TypeAdapter(KINDS[kind], config=ConfigDict(allow_inf_nan=False)).validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise ValueError(f"{name}={value!r} is not of type {kind}, which the notebook declares: {message}") from None


def plan(notebook: Path, output_dir: Path, values: Mapping[str, Sequence]) -> list[Run]:
    """Every combination as a `Run`, in the order of itertools.product: the last name varies fastest.

    output_dir: the folder of all runs. values: of each parameter that does not keep its default.

    Raises ValueError for a mistake in names, types or values, and FileNotFoundError for a file that does not exist.
    """
    notebook = Path(notebook).expanduser().resolve()
    batch = Path(output_dir).expanduser().resolve()
    declared = inspect(notebook)
    if "output_dir" in values:
        raise ValueError("output_dir: leave it out, each run gets a folder of its own in --output-dir")
    choices, defaults = {}, {}
    for name, texts in values.items():
        choices[name] = dict.fromkeys(typed(declared, name, text) for text in texts)
    for name, parameter in declared.items():
        defaults[name] = parameter["default"]
        with contextlib.suppress(ValueError, SyntaxError):
            defaults[name] = ast.literal_eval(parameter["default"])
    varied = [name for name in choices if len(choices[name]) > 1]
    digest = functools.cache(records.content_digest)
    runs = []
    for combination in itertools.product(*choices.values()):
        parameters = dict(zip(choices, combination, strict=True))
        name = run_name({name: parameters[name] for name in varied})
        path = source_path("data_source", parameters.get("data_source", SAMPLE))
        if path:
            parameters["data_source"] = str(path.resolve())
        settings = defaults | parameters
        identity = records.identify(notebook, settings, varied, digest)
        folder = records.choose_folder(batch / name, identity)
        output = folder / "output"
        if settings.get(
            "keep_in"
        ):  # in a second place all runs lie beside each other, under the names of these folders
            output = folder / f"{batch.name},{folder.name}"
        before = records.read(folder).get("parameters", {})
        parameters["output_dir"] = before.get("output_dir", str(output))
        runs.append(Run(notebook, parameters, identity, folder))
    return runs


def run_name(varied: Mapping[str, Any]) -> str:
    """A folder name from the varied parameters, percent-encoded so that different values never share one."""
    assignments = [f"{name}={quote(str(value), safe='')}" for name, value in varied.items()]
    name = ",".join(assignments) or "run"
    if len(name) <= LONGEST_NAME:
        return name
    digest = sha256(name.encode()).hexdigest()
    return f"{name[:LONGEST_NAME]}-{digest[:8]}"


def literal_path(path: Path) -> str:
    """The path with its braces escaped, since papermill formats paths as templates."""
    return str(path).replace("{", "{{").replace("}", "}}")
