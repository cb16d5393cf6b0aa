"""YAML into frozen dataclasses, strictly: what is not known, not of its type or not in its range is an error with a line.

A section is a subclass of `Section`; its fields are bool, int, float, str, a tuple of two floats, a tuple of sections,
or another section. `setting` gives a field its default and what it may be.

PyYAML reads YAML 1.1, where 1e-8 is text and `no` is false. Here the text of a scalar is read by the type of its key.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import yaml

INTEGER = re.compile(r"[-+]?(0|[1-9](_?[0-9]){0,18})")
NUMBER = re.compile(r"[-+]?([0-9](_?[0-9])*\.?|[0-9]*\.[0-9]+)([eE][-+]?[0-9]{1,3})?")
BOOL_TAG, STR_TAG, NULL_TAG = (f"tag:yaml.org,2002:{name}" for name in ("bool", "str", "null"))


class WrongSetting(ValueError):
    """`keys` are the dotted paths that the message is about, the one to change first."""

    def __init__(self, message: str, *keys: str):
        super().__init__(message)
        self.keys = keys


def setting(default: Any, *, low: float = -math.inf, high: float = math.inf, above: float = -math.inf, choices=()):
    """A field with its default; numbers in [`low`, `high`] and more than `above`, texts among `choices`."""
    return field(default=default, metadata={"low": low, "high": high, "above": above, "choices": tuple(choices)})


@dataclass(frozen=True, kw_only=True)
class Section:
    """One mapping of the document; `class Model(Section, path="model")` gives it its place."""

    path: ClassVar[str] = ""

    def __init_subclass__(cls, path: str = ""):
        cls.path = path

    def __post_init__(self):
        for name, kind, of in settings(type(self)):
            value = _checked(_joined(self.path, name), getattr(self, name), kind, of)
            object.__setattr__(self, name, value)


S = TypeVar("S", bound=Section)


def settings(section: type[Section]) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Name, type and limits of each field."""
    kinds = get_type_hints(section)
    return ((of.name, kinds[of.name], of.metadata) for of in fields(section))


def leaves(section: type[Section]) -> dict[str, Any]:
    """Dotted path -> type of every key that holds a value, in the document's order."""
    return {path: kind for path, kind in _paths(section).items() if not is_dataclass(kind)}


def read(section: type[S], text: str, name: str) -> S:
    """The section that a YAML document says; keys that it leaves out take their defaults.

    name: of the document, for errors.

    Raises ValueError `name:line: key=value: what is wrong; remedy`.
    """
    reader = _Reader(section)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return section() if node is None else reader.section(section, node, "")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ValueError(f"{name}:{mark.line + 1}: not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{name}: not YAML: {error}") from error
    except WrongSetting as error:
        lines = list(dict.fromkeys(reader.lines[key] for key in error.keys if key in reader.lines)) or [1]
        also = "".join(f" (and line {line})" for line in lines[1:])
        raise ValueError(f"{name}:{lines[0]}: {error}{also}") from error


def write(section: Section) -> str:
    """YAML that `read` turns into an equal section; every key is written out."""
    return yaml.safe_dump(_plain(section), sort_keys=False, default_flow_style=None, width=120)


def override(section: S, changes: Mapping[str, Any]) -> S:
    """A copy with other values at some dotted paths; each is a value of the key's type, or the YAML text of one.

    All are changed before any combination is checked.

    Raises WrongSetting (a ValueError) as `read` does, without a line.
    """
    kinds, reader, tree = leaves(type(section)), _Reader(type(section)), {}
    for path, value in changes.items():
        if path not in kinds:
            section_there = _paths(type(section)).get(path)
            said = f"{path}: is a section; name its keys: {', '.join(_names(section_there))}" if section_there else ""
            raise WrongSetting(said or reader.unknown(path), path)
        *parents, name = path.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[name] = _node(path, value, kinds[path])
    return _replaced(section, tree, reader)


def _replaced(section: S, tree: dict[str, Any], reader: _Reader) -> S:
    changed = {}
    for name, kind, of in settings(type(section)):
        if name in tree and is_dataclass(kind):
            changed[name] = _replaced(getattr(section, name), tree[name], reader)
        elif name in tree:
            changed[name] = reader.value(tree[name], kind, of, _joined(section.path, name))
    return replace(section, **changed)


def _node(path: str, value: Any, kind: Any) -> yaml.Node | None:
    if kind is str and isinstance(value, str):
        return yaml.ScalarNode(STR_TAG, value)
    try:
        return yaml.compose(value if isinstance(value, str) else yaml.safe_dump(_plain(value)), Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise WrongSetting(f"{path}={value!r}: not a value that YAML has; give {_described(kind)}", path) from error


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {of.name: _plain(getattr(value, of.name)) for of in fields(value)}
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


class _Reader:
    """Turns nodes into values; `lines` says where each key stands."""

    def __init__(self, document: type[Section]):
        self.document = document
        self.lines: dict[str, int] = {}

    def section(self, section: type[S], node: yaml.Node, path: str) -> S:
        if not isinstance(node, yaml.MappingNode):
            self.lines.setdefault(path, node.start_mark.line + 1)
            where = path or "the document"
            raise WrongSetting(f"{where}: must hold keys with values: {', '.join(_names(section))}", path)
        known = {name: (kind, of) for name, kind, of in settings(section)}
        given: dict[str, Any] = {}
        for key_node, value_node in node.value:
            name = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
            key, first = _joined(path, name), self.lines.get(_joined(path, name))
            self.lines[key] = key_node.start_mark.line + 1
            if name in given:
                raise WrongSetting(f"{key}: is there twice, first in line {first}; leave one", key)
            if name not in known:
                raise WrongSetting(self.unknown(key, section), key)
            kind, of = known[name]
            given[name] = (
                self.section(kind, value_node, key) if is_dataclass(kind) else self.value(value_node, kind, of, key)
            )
        missing = [of.name for of in fields(section) if of.default is MISSING and of.default_factory is MISSING]
        if absent := [name for name in missing if name not in given]:
            self.lines.setdefault(path, node.start_mark.line + 1)
            raise WrongSetting(f"{path}: lacks {', '.join(absent)}", path)
        return section(**given)

    def value(self, node: yaml.Node | None, kind: Any, of: Mapping[str, Any], path: str) -> Any:
        wanted = _described(kind, of)
        if node is None or node.tag == NULL_TAG:
            raise WrongSetting(f"{path}: has no value; give {wanted}, or leave the key out for its default", path)
        if get_origin(kind) is not tuple:
            if not isinstance(node, yaml.ScalarNode):
                raise WrongSetting(f"{path}: must be one value; give {wanted}", path)
            return _checked(path, _scalar(node, kind, path, wanted), kind, of)
        if not isinstance(node, yaml.SequenceNode):
            raise WrongSetting(f"{path}: must be a list; give {wanted}", path)
        item, items = get_args(kind)[0], []
        for position, part in enumerate(node.value):
            place = f"{path}[{position}]"
            if part.start_mark:
                self.lines[place] = part.start_mark.line + 1
            items.append(self.section(item, part, place) if is_dataclass(item) else self.value(part, item, of, place))
        return _checked(path, tuple(items), kind, of)

    def unknown(self, key: str, section: type[Section] | None = None) -> str:
        """Names the nearest key of the whole document: the one that was meant may stand in another section."""
        paths = _paths(self.document)
        parent, _, name = key.rpartition(".")
        section = section or paths.get(parent, self.document)
        section = section if is_dataclass(section) else self.document

        def likeness(path: str) -> float:
            its_parent, _, its_name = path.rpartition(".")
            return difflib.SequenceMatcher(None, name.lower(), its_name).ratio() + 0.2 * (its_parent == parent)

        near = max([*(_joined(parent, known) for known in _names(section)), *paths], key=likeness)
        hint = f"; did you mean {near}?" if likeness(near) >= 0.6 else ";"
        return f"{key}: unknown key{hint} {section.path or 'the document'} has {', '.join(_names(section))}"


def _scalar(node: yaml.ScalarNode, kind: type, path: str, wanted: str) -> bool | int | float | str:
    text, quoted = node.value, bool(node.style)
    if kind is str:
        if quoted or node.tag == STR_TAG:
            return text
    elif quoted:
        raise WrongSetting(f"{path}={text!r}: is in quotes, so it is a text; give {wanted}, without quotes", path)
    elif kind is bool and node.tag == BOOL_TAG:
        return yaml.SafeLoader.bool_values[text.lower()]
    elif kind is int and INTEGER.fullmatch(text):
        return int(text)
    elif kind is float and NUMBER.fullmatch(text):
        return float(text)
    raise WrongSetting(f"{path}={text}: wrong type; give {wanted}", path)


def _checked(path: str, value: Any, kind: Any, of: Mapping[str, Any]) -> Any:
    """`value` if it is of its type and in its range; an int for a float becomes a float, a list a tuple."""
    wanted = _described(kind, of)
    if get_origin(kind) is tuple:
        items = get_args(kind)
        if not isinstance(value, (tuple, list)) or (Ellipsis not in items and len(value) != len(items)):
            raise WrongSetting(f"{path}={value!r}: not such a list; give {wanted}", path)
        limits = {} if is_dataclass(items[0]) else of
        return tuple(_checked(f"{path}[{at}]", part, items[0], limits) for at, part in enumerate(value))
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise WrongSetting(f"{path}={value!r}: wrong type; give {wanted}", path)
    if kind is str and of.get("choices") and value not in of["choices"]:
        close = difflib.get_close_matches(value, of["choices"], n=1)
        raise WrongSetting(f"{path}={value}: unknown; give {wanted}{f'; {close[0]}?' if close else ''}", path)
    if kind in (int, float) and not (
        of.get("low", -math.inf) <= value <= of.get("high", math.inf)
        and value > of.get("above", -math.inf)
        and math.isfinite(value)
    ):
        raise WrongSetting(f"{path}={value!r}: out of range; give {wanted}", path)
    return value


def _described(kind: Any, of: Mapping[str, Any] | None = None) -> str:
    of = of or {}
    if is_dataclass(kind):
        return f"{{{', '.join(_names(kind))}}}"
    if get_origin(kind) is tuple:
        item, *others = get_args(kind)
        return f"a list of {_described(item)}" if Ellipsis in others else f"[{', '.join([_described(item, of)] * 2)}]"
    if kind is bool:
        return "true or false"
    if kind is str:
        return f"one of {', '.join(of['choices'])}" if of.get("choices") else "a text"
    low, high, above = of.get("low", -math.inf), of.get("high", math.inf), of.get("above", -math.inf)
    limits = [f"more than {above}"] if above > -math.inf else []
    limits += [f"at least {low}"] if low > -math.inf else []
    limits += [f"at most {high}"] if high < math.inf else []
    return " ".join(["a whole number" if kind is int else "a number", " and ".join(limits)]).strip()


def _paths(section: type[Section]) -> dict[str, Any]:
    """Dotted path -> type, sections included."""
    found: dict[str, Any] = {}
    for name, kind, _ in settings(section):
        found[_joined(section.path, name)] = kind
        if is_dataclass(kind):
            found.update(_paths(kind))
    return found


def _names(section: type[Section]) -> list[str]:
    return [of.name for of in fields(section)]


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
