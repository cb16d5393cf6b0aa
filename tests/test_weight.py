"""The words of each room of helpers, and of what stands beside helpers, stay within their budgets.

    python tests/test_weight.py        prints them

A word is a Python token without docstrings, comments and punctuation; a string counts one more for each 40 characters.
Wider lines, denser code and clipped documentation do not lower it, so that there is nothing to win by them.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
SLACK = 1.05
# The budget of each part, which nobody raises, and its words when it was last made smaller: a part that is above its budget may not
# grow, and a commit that makes it smaller lowers the second number. Pages are counted by their words outside of code.
BUDGETS = {
    "shared": (12_000, 12_180),
    "plan": (1_000, 1_050),
    "reservoir": (5_200, 5_460),
    "lejepa": (4_900, 5_145),
    "legal": (4_900, 5_020),
    "tuning": (3_400, 3_535),
    "graphmer": (13_500, 14_100),
    "helpers": (44_900, 46_400),
    "notebooks and tools": (11_000, 11_180),
    "tests": (45_000, 47_250),
    "benchmarks and docs": (15_000, 15_590),
    "pages": (14_000, 14_000),
}
ROOMS = ("plan", "reservoir", "lejepa", "legal", "tuning", "graphmer")
BESIDE = {"tests": "tests"} | dict.fromkeys(("notebooks", "tools"), "notebooks and tools")
BESIDE |= dict.fromkeys(("benchmarks", "docs"), "benchmarks and docs")

SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
PUNCTUATION = set("()[]{},:;.")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# From Python 3.12 on an f-string is many tokens; it counts as one word, as before.
F_START, F_END = getattr(tokenize, "FSTRING_START", None), getattr(tokenize, "FSTRING_END", None)


def lines_of_docstrings(tree: ast.Module) -> set[int]:
    documented = [each for each in ast.walk(tree) if isinstance(each, DOCUMENTED) and ast.get_docstring(each)]
    return {line for each in documented for line in range(each.body[0].lineno, each.body[0].end_lineno + 1)}


def words_of(text: str) -> int:
    docstrings = lines_of_docstrings(ast.parse(text))
    words = depth = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        outermost = token.type == F_START and depth == 0
        inside = depth > 0 or token.type == F_END
        depth += (token.type == F_START) - (token.type == F_END)
        if token.type in SKIPPED or token.start[0] in docstrings or (inside and not outermost):
            continue
        if token.type == tokenize.OP and token.string in PUNCTUATION:
            continue
        words += 1 + (len(token.string) // 40 if token.type == tokenize.STRING else 0)
    return words


@cache
def weigh() -> Counter:
    """Words of each name in BUDGETS; what belongs to no room is shared."""
    weights = Counter()
    for folder in ("helpers", *BESIDE):
        for path in (ROOT / folder).rglob("*.py"):
            words = words_of(path.read_text(encoding="utf-8"))
            weights[BESIDE.get(folder, folder)] += words
            if folder == "helpers":
                room = path.relative_to(ROOT / folder).parts[0]
                weights[room if room in ROOMS else "shared"] += words
    for page in (ROOT / "docs").glob("*.md"):
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        weights["pages"] += len(prose.split())
    return weights


@pytest.mark.parametrize("name", BUDGETS)
def test_a_part_is_within_its_budget_or_does_not_grow(name):
    budget, before = BUDGETS[name]
    most = max(SLACK * budget, before)
    assert weigh()[name] <= most, f"{name} has {weigh()[name]} words, at most {most:.0f}: take something away"


def test_no_code_is_a_string_that_is_executed_but_the_setup():
    executed = []
    for folder in ("helpers", "notebooks", "tools", "benchmarks", "docs"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("exec", "eval"):
                    executed.append(path.name)
    assert executed == ["setup_cell.py"]


def test_no_data_file_holds_code():
    files = [path for kind in ("json", "toml", "yaml") for path in (ROOT / "helpers").rglob(f"*.{kind}")]
    files += [path for folder in ("tools", "benchmarks") for path in (ROOT / folder).rglob("*.json")]
    assert [path.name for path in files if re.search(r"\\n *(def|class|import|from) ", path.read_text("utf-8"))] == []


if __name__ == "__main__":
    for name, (budget, before) in BUDGETS.items():
        print(f"{name:20s} {weigh()[name]:7,d} words, budget {budget:7,d}, at most {max(SLACK * budget, before):9,.0f}")
