"""What a few regular expressions say of a call that static resolution leaves open: a simple method, for tables beside an encoder.

The class of the receiver is guessed from what its module, then its package, writes down about a variable or attribute of that name:
`conn: Connection`, `conn = Connection(`, `with open_it() as conn` where `open_it` says `-> Connection` or `return Connection(`,
`:type conn: Connection`. An import's name is the module or class that it stands for, `self` and `cls` the class around the call,
`super()` its bases, and without a receiver what was imported by that name, or is in the same module. Last, a class whose name is
the receiver's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

NAME = r"[A-Za-z_]\w*"
CLASS = re.compile(rf"^([ \t]*)class\s+({NAME})\s*(?:\(([^)]*)\))?\s*:", re.M)
IMPORT = re.compile(r"^[ \t]*from\s+([\w.]+)\s+import\s+(\([^)]*\)|[^\n#]+)", re.M)
IMPORT_MODULE = re.compile(rf"^[ \t]*import\s+([\w.]+)(?:\s+as\s+({NAME}))?", re.M)
FUNCTION = re.compile(rf"^[ \t]*(?:async\s+)?def\s+({NAME})\s*\(.*?\)\s*(?:->\s*([^:\n]+))?:", re.M | re.S)
RETURN = re.compile(rf"\breturn\s+({NAME})\(")


class RegexResolver:
    """texts: module name -> source, of all modules of a package."""

    def __init__(self, texts: Mapping[str, str]):
        self.texts = texts
        self.whole = "\n".join(texts.values())
        self.bases = {name: re.findall(NAME, bases) for _, name, bases in CLASS.findall(self.whole)}
        self.returned = self._returned()

    def answers(self, module: str, caller: str, receiver: str, name: str, candidates: Iterable[str]) -> list[str]:
        """The candidates, ids of functions and methods called `name`, that this call may mean; none where nothing is found."""
        for owners in self._owners(module, caller, receiver, name):
            for known in (owners, self._with_bases(owners)):
                found = [one for one in candidates if one.split(".")[-2:-1] and one.split(".")[-2] in known]
                if found:
                    return found
        return []

    def _owners(self, module: str, caller: str, receiver: str, name: str) -> Iterable[set[str]]:
        """Names of classes or modules that may own what is called, the surest first."""
        text, around = self.texts[module], set(caller.removeprefix(module).split(".")[1:-1])
        imported = self._imported(text)
        last = re.sub(r"[\[(].*$", "", receiver, flags=re.S).rpartition(".")[2]
        if not receiver:
            yield imported.get(name, set())
            yield {module.rpartition(".")[2]}
        elif receiver in ("self", "cls"):
            yield around
        elif receiver.startswith("super("):
            yield {base for owner in around for base in self.bases.get(owner, ())}
        else:
            yield imported.get(receiver, set())
            yield self._returned_by(last) if receiver.endswith(")") else set()
            for where in (text, self.whole):
                yield self._of_variable(last, where)
            words = last.strip("_").replace("_", "").lower()
            yield {owner for owner in self.bases if owner.lower() == words}
            yield {owner for owner in self.bases if len(words) > 2 and owner.lower().endswith(words)}

    def _imported(self, text: str) -> dict[str, set[str]]:
        """What a name stands for: last parts of dotted names."""
        found: dict[str, set[str]] = {}
        for source, names in IMPORT.findall(text):
            for each in re.findall(rf"({NAME})(?:\s+as\s+({NAME}))?", names):
                found.setdefault(each[1] or each[0], set()).update({each[0], source.rpartition(".")[2]})
        for source, other in IMPORT_MODULE.findall(text):
            found.setdefault(other or source, set()).add(source.rpartition(".")[2])
        return found

    def _of_variable(self, variable: str, text: str) -> set[str]:
        """Classes that assignments, annotations and docstrings give a variable or attribute of this name."""
        word = rf"(?<!\w){re.escape(variable)}"
        found = set()
        for annotation in re.findall(rf"{word}\s*:\s*([^=,)\n]+)", text):
            found.update(re.findall(NAME, annotation))
        for maker in re.findall(rf"{word}\s*(?::[^=\n]+)?=\s*(?:await\s+)?([\w.]+)\(", text):
            found |= self._returned_by(maker.rpartition(".")[2])
        for maker in re.findall(rf"([\w.]+)\([^\n]*\)\s+as\s+{re.escape(variable)}\b", text):
            found |= self._returned_by(maker.rpartition(".")[2])
        for said in re.findall(rf":(?:type|param)\s+(?:{NAME}\s+)?{re.escape(variable)}:\s*([^\n]+)", text):
            found.update(re.findall(NAME, said))
        return found & self.bases.keys()

    def _returned_by(self, maker: str) -> set[str]:
        return {maker} if maker in self.bases else self.returned.get(maker, set())

    def _returned(self) -> dict[str, set[str]]:
        """Function name -> classes that its annotation or a return statement names."""
        found: dict[str, set[str]] = {}
        for text in self.texts.values():
            starts = list(FUNCTION.finditer(text))
            for at, match in enumerate(starts):
                end = starts[at + 1].start() if at + 1 < len(starts) else len(text)
                named = set(re.findall(NAME, match[2] or "")) | set(RETURN.findall(text[match.end() : end]))
                if named & self.bases.keys():
                    found.setdefault(match[1], set()).update(named & self.bases.keys())
        return found

    def _with_bases(self, owners: set[str], depth: int = 5) -> set[str]:
        found = set(owners)
        for _ in range(depth):
            found |= {base for owner in found for base in self.bases.get(owner, ())}
        return found
