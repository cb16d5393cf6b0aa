"""YAML read into pydantic models: what is wrong is said with its line, its key, its value and the remedy.

Numbers are those of YAML 1.2. To PyYAML, which reads YAML 1.1, 1e-8 is a text, 010 is eight and 1:30 is ninety.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, ClassVar, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

KEY = re.compile(r"[a-z_]+(?:\.[a-z_]+|\[\d+\])+")
INTEGER = re.compile(r"[-+]?(0|[1-9][0-9_]{0,18})$")
NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?$")
KINDS = {"bool_type": "true or false", "int_type": "a whole number", "float_type": "a number", "tuple_type": "a list"}


class Section(BaseModel):
    """One mapping of the document. A validator names the keys that do not go together by their dotted paths."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


S = TypeVar("S", bound=Section)


def read(section: type[S], text: str, name: str) -> S:
    """The section that a YAML document says; keys that it leaves out take their defaults.

    name: of the document, for errors.

    Raises ValueError with `name:line: key=value: what is wrong; remedy` for everything that is wrong.
    """
    tree, places = _loaded(text, name)
    try:
        return section.model_validate(tree if places else {})
    except ValidationError as error:
        said = []
        for keys, wrong in _in_words(error, section, places):
            lines = [*dict.fromkeys(places[key][0] for key in keys if key in places)] or [1]
            also = "".join(f" (and line {line})" for line in lines[1:])
            said.append((lines[0], f"{name}:{lines[0]}: {wrong}{also}"))
        raise ValueError("\n".join(wrong for _, wrong in sorted(said, key=lambda pair: pair[0]))) from error


def override(section: S, changes: Mapping[str, Any]) -> S:
    """A copy with other values at some dotted paths, `{"optimizer.lr": 1e-4}`; a text is read as in a document.

    All are changed before any combination is checked.

    Raises ValueError as `read` does, without a line.
    """
    declared, tree, written = _declared(FieldInfo(annotation=type(section))), section.model_dump(), {}
    for path, value in changes.items():
        *parents, name = path.split(".")
        if path not in declared or "[" in path:
            raise ValueError(_unknown((*parents, name), declared))
        if names := _names(declared[path]):
            raise ValueError(f"{path}: is a section; name its keys: {', '.join(names)}")
        if isinstance(value, str):
            value, places = _loaded(value, f"{path}={value!r}", path)
            written |= places
        reduce(getitem, parents, tree)[name] = tuple(value) if isinstance(value, list) else value
    try:
        return section.model_validate(tree)
    except ValidationError as error:
        raise ValueError("\n".join(wrong for _, wrong in _in_words(error, type(section), written))) from error


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in known if tag.endswith((":bool", ":null"))]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):  # nine lines of them can stand for a billion values
            problem = "an alias; write the value out"
            raise yaml.composer.ComposerError(problem=problem, problem_mark=self.peek_event().start_mark)
        return super().compose_node(parent, index)


_Loader.add_implicit_resolver("tag:yaml.org,2002:int", INTEGER, "-+0123456789")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, "-+.0123456789")


def _loaded(text: str, name: str, path: str = "") -> tuple[Any, dict[str, tuple[int, str]]]:
    """The plain value that a YAML text means, and dotted path -> line of each key and its value as it is written."""
    places: dict[str, tuple[int, str]] = {}
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        return None if root is None else _value(loader, root, root, path, places), places
    except (yaml.YAMLError, RecursionError) as error:  # a section can hold itself
        line = f":{error.problem_mark.line + 1}" if isinstance(error, yaml.MarkedYAMLError) else ""
        raise ValueError(f"{name}{line}: not YAML: {getattr(error, 'problem', error)}") from error


def _value(loader: _Loader, key: yaml.Node, node: yaml.Node, path: str, places: dict[str, tuple[int, str]]) -> Any:
    start, end = node.start_mark, node.end_mark
    places[path] = key.start_mark.line + 1, start.buffer[start.pointer : end.pointer].partition("\n")[0]
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_object(node)
    if isinstance(node, yaml.SequenceNode):
        return tuple(_value(loader, item, item, f"{path}[{at}]", places) for at, item in enumerate(node.value))
    found = {}
    for inner, value in node.value:
        name = f"{inner.value}"
        place = f"{path}.{name}" if path else name
        if name in found:
            said = f"{place} is there twice, first in line {places[place][0]}; leave one"
            raise yaml.constructor.ConstructorError(problem=said, problem_mark=inner.start_mark)
        found[name] = _value(loader, inner, value, place, places)
    return found


def _in_words(
    error: ValidationError, section: type[Section], places: Mapping[str, Any]
) -> Iterator[tuple[list[str], str]]:
    """The keys that each error is about, and what it says."""
    declared = _declared(FieldInfo(annotation=section))
    for each in error.errors():
        kind, value, place = each["type"], each["input"], each["loc"]
        path, field = _dotted(place), declared.get(_dotted(place, "[]"))
        wanted = f"must be {KINDS[kind]}" if kind in KINDS else each["msg"].replace("Input should", "must")
        if kind == "value_error":
            yield from ((KEY.findall(said), said) for said in str(each["ctx"]["error"]).splitlines())
        elif kind == "extra_forbidden":
            yield [path], _unknown(place, declared)
        elif kind == "model_type":
            yield [path], f"{path or 'the document'}: must hold keys with values: {', '.join(_names(field))}"
        elif kind == "missing":
            yield [_dotted(place[:-1])], f"{path}: is missing. {field.description}"
        elif value is None:
            yield [path], f"{path}: has no value; it {wanted}, or leave the key out for its default"
        elif kind != "default_factory_not_called":
            _, text = places.get(path, (0, value))
            quotes = ", without quotes" if kind in KINDS and str(text).startswith(("'", '"')) else ""
            yield [path], f"{path}={text}: {wanted}{quotes}. {field.description}"


def _unknown(place: Sequence[str | int], declared: Mapping[str, FieldInfo]) -> str:
    """Names the nearest key: of the same section, or of the whole document, as it may be meant for another section."""
    *parents, name = place
    parent, names = _dotted(parents), _names(declared.get(_dotted(parents, "[]")))
    if not names:
        parent, names = "", _names(declared[""])
    known = {path.rpartition(".")[2]: path for path in reversed(declared)}
    known |= {own: f"{parent}.{own}" if parent else own for own in names}
    close = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f" did you mean {known[close[0]]}?" if close else ""
    return f"{_dotted(place)}: unknown key;{hint} {parent or 'the document'} has {', '.join(names)}"


def _declared(field: FieldInfo, path: str = "") -> dict[str, FieldInfo]:
    """Dotted path -> declaration of a field and of all below it; `[]` stands for each item of a list."""
    found = {path: field}
    if get_origin(field.annotation) is tuple:
        found |= _declared(FieldInfo.from_annotation(get_args(field.annotation)[0]), f"{path}[]")
    for name, inner in getattr(field.annotation, "model_fields", {}).items():
        found |= _declared(inner, f"{path}.{name}" if path else name)
    return found


def _names(field: FieldInfo | None) -> list[str]:
    """The keys of a section; none of any other field."""
    return list(getattr(field and field.annotation, "model_fields", ()))


def _dotted(place: Sequence[str | int], item: str = "[{}]") -> str:
    return "".join(item.format(part) if isinstance(part, int) else f".{part}" for part in place)[1:]
