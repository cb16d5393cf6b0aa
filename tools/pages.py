"""Writes what README.md and docs/*.md say about measurements: every figure comes from a file under docs/results/.

    python tools/pages.py            write the generated parts
    python tools/pages.py --check    exit 1 and name what differs, and every figure that was typed by hand

Between `<!-- evidence: NAME.FUNCTION -->` and `<!-- end -->` stands what that function of evidence/NAME.py returns: a table, or
sentences with their figures. It reads files with `result`; those that do not say which code wrote them are named under
it as "before schema 2". Outside of such blocks there are no figures: no decimals, percentages, spreads or ratios. What is
in code, a link or a heading does not count, nor do versions after the name of what they are of.
"""

import argparse
import importlib
import json
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"(<!-- evidence: (\w+)\.(\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
NOT_PROSE = re.compile(r"```.*?```|`[^`\n]*`|<!--.*?-->|^#[^\n]*$|https?://\S+|\]\([^)]*\)", re.DOTALL | re.MULTILINE)
VERSION = re.compile(
    r"(?:Python|torch|torch_xla|transformers|arXiv|version|schema)[ :]\d[\d.]*\b(?: to \d[\d.]*\b)?", re.IGNORECASE
)
FIGURE = re.compile(r"\d+\.\d+|\d ?%|±|\d+(?:,\d{3})+|\d+ times as|\d+/\d+ of|\d+ of \d+")

_read: list[str] = []


def result(name: str) -> dict[str, Any]:
    """A file under docs/results/."""
    found = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    if not ({"code", "versions"} <= found.keys()) and name not in _read:
        _read.append(name)
    return found


def spread(values: Sequence[float], digits: int = 3, sign: str = "-") -> str:
    """Mean ± sample standard deviation, or the one value; sign "+" is for differences."""
    mean = f"{statistics.fmean(values):{sign}.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def page(path: Path) -> str:
    """A page with its blocks as they should be."""

    def block(match: re.Match) -> str:
        _read.clear()
        module = importlib.import_module(f"evidence.{match[2]}")
        text = getattr(module, match[3])().strip()
        old = (
            f"\n\n*From before schema 2, so they do not record which code wrote them: {_links(path)}.*" if _read else ""
        )
        return f"{match[1]}\n{text}{old}\n\n{match[4]}"

    return BLOCK.sub(block, path.read_text(encoding="utf-8"))


def _links(path: Path) -> str:
    """The files that a block was made from."""
    folder = "results" if path.parent == ROOT / "docs" else "docs/results"
    return ", ".join(f"[{name}]({folder}/{name})" for name in _read)


def draw() -> None:
    """The figures of the modules that have a function `draw`. How a picture looks is not checked: libraries differ in it."""
    for path in sorted((ROOT / "docs/evidence").glob("*.py")):
        module = importlib.import_module(f"evidence.{path.stem}")
        if hasattr(module, "draw"):
            module.draw()


def typed_by_hand(text: str) -> Iterable[tuple[int, str]]:
    """Line number and figure of each that is in the prose outside of blocks."""

    def blank(match: re.Match) -> str:
        return "\n" * match[0].count("\n")

    for pattern in (BLOCK, NOT_PROSE, VERSION):
        text = pattern.sub(blank, text)
    for number, line in enumerate(text.splitlines(), start=1):
        yield from ((number, found[0]) for found in FIGURE.finditer(line))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check, wrong = parser.parse_args().check, 0
    if not check:
        draw()
    for path in PAGES:
        name, text = path.relative_to(ROOT), page(path)
        if text != path.read_text(encoding="utf-8"):
            if check:
                wrong += 1
                print(f"{name}: not what docs/results say; run `make docs`")
            else:
                path.write_text(text, encoding="utf-8")
        for number, figure in typed_by_hand(text):
            wrong += 1
            print(f"{name}:{number}: {figure}: typed by hand; put it into a block of docs/evidence")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "docs")]
    sys.modules["tools.pages"] = sys.modules["__main__"]
    sys.exit(main())
