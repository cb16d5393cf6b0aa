"""docs/build.py on a small tree of its own: what it writes, and what it names. And every link of the real pages."""

import ast
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from helpers.batch import grid
from tests.harness import ROOT, python

pytestmark = pytest.mark.once

FIRST = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")]
PAGES = [*FIRST, *sorted((ROOT / "docs").glob("*.md"))]
EVIDENCE = """
from build import result, spread

def sentence():
    return f"It reached {spread(result('run_seed0.json')['values'])} F1."
"""
SECTIONS = (
    "Your data",
    "Evidence",
    "How it works",
    "What does not work",
    "Parameters",
)  # of a model's page, in this order
COMMANDS = [
    pytest.param(words, id=f"{page.stem}-{' '.join(words[:4])}")
    for page in PAGES
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
    if (words := shlex.split(line, comments=True)) and page.stem != "add-a-notebook"  # whose notebook is not there yet
]
BLOCK = "# Page\n\n<!-- evidence: probe.sentence -->\n<!-- end -->\n\nAnd so on.\n"


class Tree:
    """A repository with build.py, one page, one result and one function of evidence."""

    def __init__(self, root: Path):
        self.root, self.page = root, root / "docs/page.md"
        (root / "docs/evidence").mkdir(parents=True)
        (root / "docs/results").mkdir()
        (root / "README.md").write_text("# Nothing\n")
        (root / "docs/evidence/probe.py").write_text(EVIDENCE)
        shutil.copy(ROOT / "docs/build.py", root / "docs/build.py")

    def results(self, **found) -> None:
        (self.root / "docs/results/run_seed0.json").write_text(json.dumps(found))

    def build(self, *arguments: str) -> tuple[int, list[str]]:
        """Exit status and lines."""
        done = python("-B", self.root / "docs/build.py", *arguments)
        assert not done.stderr
        return done.returncode, done.stdout.splitlines()


@pytest.fixture
def tree(tmp_path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("prose", "figures"),
    [
        ("nDCG is 0.404 ± 0.003.", ["0.404", "±", "0.003"]),
        ("It grew from 1.5 to 2.5.", ["1.5", "2.5"]),
        ("It takes 4 % of the memory.", ["4 %"]),
        ("It has 4,835 weights.", ["4,835"]),
        ("It is 3 times as fast.", ["3 times as"]),
        ("| all sections | 300 of 300 |", ["300 of 300"]),
    ],
)
def test_a_figure_that_was_typed_by_hand_is_named_with_its_line(tree, prose, figures):
    tree.page.write_text(f"# A heading\n\nWords.\n\n```\n0.5\n```\n\n{prose}\n")
    status, lines = tree.build("--check")
    assert status == 1
    assert [line.split(": ")[:2] for line in lines] == [["docs/page.md:9", figure] for figure in figures]


def test_a_block_is_written_anew_from_the_results_and_the_rest_of_the_page_stays(tree):
    tree.page.write_text(BLOCK)
    tree.results(values=[0.25, 0.75], code={}, versions={})
    status, lines = tree.build("--check")
    assert status == 1 and lines == ["docs/page.md: not what docs/results say; run `make docs`"]
    assert tree.page.read_text() == BLOCK
    tree.build()
    written = BLOCK.replace(" -->\n<", " -->\n\nIt reached 0.500 ± 0.354 F1.\n\n<")
    assert tree.page.read_text() == written
    assert tree.build("--check") == (0, [])
    tree.results(values=[0.25], code={}, versions={})
    tree.build()
    assert tree.page.read_text() == written.replace("0.500 ± 0.354", "0.250")


def links(page: Path) -> list[str]:
    """Targets of a page's relative links and pictures, those in code left out."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_to_a_heading_in_it(page):
    broken = []
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_names_notebooks_parameters_modules_and_targets_that_are_there(words):
    notebooks = [word for word in words if word.endswith(".ipynb") and word.startswith("notebooks/")]
    for name in notebooks:
        declared = grid.inspect(ROOT / name)
        given = [words[at + 1] for at, word in enumerate(words) if word == "-p"]
        values = grid.parse([word for word in words if re.match(r"\w+=", word) and not word.isupper()])
        assert {*given, *values} <= {*declared}
        assert all(grid.typed(declared, key, each) is not None for key in values for each in values[key])
    if "-m" in words and words[words.index("-m") + 1].startswith("helpers"):
        module = ROOT / words[words.index("-m") + 1].replace(".", "/")
        assert module.with_suffix(".py").is_file() or (module / "__main__.py").is_file()
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words[1:] if "=" not in word} <= set(targets)
    scripts = [word for word in words if word.endswith(".py") and not word.startswith("/")]
    assert all((ROOT / script).is_file() for script in scripts if "/" in script)


@pytest.mark.parametrize("page", ["graphmer", "legal", "lejepa", "reservoir", "tuning"])
def test_the_page_of_a_model_has_the_sections_of_the_book_in_order(page):
    text = (ROOT / f"docs/{page}.md").read_text()
    assert [found for found in re.findall(r"^## (.+)$", text, re.MULTILINE) if found in SECTIONS] == [*SECTIONS]
    how = text.partition("\n## How it works\n")[2].partition("\n## ")[0]
    assert how.count("```mermaid\n") == text.count("```mermaid\n") == 1


def test_every_part_of_a_results_file_is_described():
    page = (ROOT / "docs/architecture.md").read_text().partition("## results.json")[2]
    heads = re.findall(r"^(?:\w+, )*\w+", page.split("```")[1], re.MULTILINE)
    described = {name for head in heads for name in head.split(", ")}
    assert {"schema", "seed", "plan", "train", "eval"} <= described
    for path in (ROOT / "docs/results").glob("*.json"):
        found = json.loads(path.read_text())
        if isinstance(found, dict) and found.get("schema") == 2 and "sessions" in found:
            assert found.keys() <= described, path.name
    for source in {*(ROOT / "notebooks/source").glob("*.py")} - {ROOT / "notebooks/source/runtime_report.py"}:
        calls = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Call)]
        written = [call for call in calls if ast.unparse(call.func) == "run.results"]
        assert written
        assert {word.arg for call in written for word in call.keywords if word.arg} <= described


def test_the_index_leads_to_every_page():
    index = ROOT / "docs/index.md"
    targets = {target.partition("#")[0] for target in links(index)}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= targets


def test_a_public_address_gives_each_notebook_a_button_for_colab_and_one_for_kaggle(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "notebooks")
    import badges

    colab, kaggle = badges.of("legal_cot_sft", "someone/notebooks")
    path = "someone/notebooks/blob/main/notebooks/legal_cot_sft.ipynb)"
    assert colab.endswith(f"(https://colab.research.google.com/github/{path}")
    assert kaggle.endswith(f"(https://kaggle.com/kernels/welcome?src=https://github.com/{path}")
    assert badges.of("legal_cot_sft", "") == []
