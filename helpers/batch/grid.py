"""A notebook's declared parameters, and their values on a command line, in a grid and in a folder's name."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from helpers.parameters import Parameters, in_words, one_of, unknown

KINDS = {"bool": bool, "int": int, "float": float, "str": str}
BOOLEANS = {"true": True, "True": True, "false": False, "False": False}
LONGEST_NAME = 120  # file systems allow 255 bytes a name


def inspect(notebook: Path) -> dict[str, dict[str, str]]:
    """The notebook's parameters as papermill infers them: name -> {name, inferred_type_name, default, help}.

    Raises:
        FileNotFoundError: no such notebook.
        ValueError: no cell is tagged `parameters`, or it assigns no `output_dir`.
    """
    from papermill import inspect_notebook

    if not notebook.is_file():
        raise FileNotFoundError(f"notebook={str(notebook)!r}: no such file; check the path")
    parameters = inspect_notebook(literal_path(notebook))
    if not parameters:
        raise ValueError(f"{notebook} has no parameters: give the cell that assigns them the tag 'parameters'")
    if "output_dir" not in parameters:
        raise ValueError(f"{notebook} has no parameter output_dir, where results.json is read from: add it")
    return parameters


def parse(declared: Mapping[str, Mapping[str, str]], assignments: Sequence[str]) -> tuple[dict, dict]:
    """Command-line `name=value` and `name=v1,v2` as (grid, fixed), each value of the type the notebook declares.

    Raises:
        ValueError: no such parameter, a name given twice, or text that is not of the declared type.
    """
    grid, fixed = {}, {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"{assignment!r}: write name=value or name=value1,value2")
        if name in grid or name in fixed:
            raise ValueError(f"{name} is given twice: write its values as {name}=value1,value2")
        values = [from_text(name, part, kind_of(declared, name)) for part in text.split(",")]
        if len(values) > 1:
            grid[name] = values
        else:
            fixed[name] = values[0]
    return grid, fixed


def run_name(varied: Mapping[str, Any]) -> str:
    """A folder name from the varied parameters, percent-encoded so that different values never share one."""
    name = ",".join(f"{key}={quote(str(value), safe='')}" for key, value in varied.items()) or "run"
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{sha256(name.encode()).hexdigest()[:8]}"


def kind_of(declared: Mapping[str, Mapping[str, str]], name: str) -> type:
    """The declared type of a parameter. Raises ValueError for an unknown name, or a type that is not in KINDS."""
    if name not in declared:
        raise ValueError(unknown(name, declared))
    annotation = declared[name]["inferred_type_name"]
    if annotation not in KINDS:
        raise ValueError(f"{name} is annotated {annotation} in the notebook: use one of {', '.join(KINDS)}")
    return KINDS[annotation]


def from_text(name: str, text: str, kind: type) -> Any:
    """The value of type `kind` that a text of the command line stands for; ValueError if there is none."""
    if kind is bool:
        one_of(name, text, BOOLEANS)
        return BOOLEANS[text]
    try:
        value = kind(text)
    except ValueError as error:
        raise ValueError(f"{name}={text!r} is not of type {kind.__name__}, which the notebook declares") from error
    return typed(name, value, kind)


def typed(name: str, value: Any, kind: type) -> Any:
    """`value` if it is of `kind`: bool, int, float (also given as an int) or str.

    Raises:
        ValueError: another type, NaN or infinity.
    """
    try:
        return TypeAdapter(kind, config=Parameters.model_config).validate_python(value)
    except ValidationError as error:
        raise ValueError(in_words(error.errors()[0] | {"loc": (name,)}, {name: FieldInfo(annotation=kind)})) from None


def literal_path(path: Path) -> str:
    """The path with its braces escaped, since papermill formats paths as templates."""
    return str(path).replace("{", "{{").replace("}", "}}")
