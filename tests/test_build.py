"""notebooks/build.py and the setup cell that it writes, run in processes and kernels of their own."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from base64 import b85decode
from bz2 import decompress
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "notebooks"))

import bootstrap
import build

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "notebooks" / "source").glob("*.py"))
TINY = """\
# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Tiny

# %% [markdown] tags=["tpu"]
# For a TPU.

# %% tags=["setup"]
# requirements: matplotlib

# %% tags=["parameters"]
use_tpu: bool = False  # @param {type:"boolean"}  # gpu only
use_tpu: bool = True  # @param {type:"boolean"}  # tpu only
seed: int = 0  # @param {type:"integer"}

# %% tags=["gpu"]
device = "cuda"

# %%
import helpers

print(helpers.__file__, use_tpu)
"""
PARAMETERS = 'use_tpu: bool = {}  # @param {{type:"boolean"}}\nseed: int = 0  # @param {{type:"integer"}}'
REPORT = "import json, helpers; print(json.dumps([helpers.__file__, hasattr(helpers, 'stranger')]))"


@pytest.fixture
def tiny(tmp_path):
    source = tmp_path / "source" / "tiny.py"
    source.parent.mkdir()
    source.write_text(TINY, encoding="utf-8")
    return source


def command_line(*arguments: object, cwd: Path = ROOT, hash_seed: int = 0) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(ROOT / "notebooks" / "build.py"), *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
    )


# ---- the notebooks ----


def test_building_twice_from_different_folders_gives_the_same_bytes(tiny, tmp_path):
    for hash_seed, cwd in enumerate((ROOT, tmp_path)):
        finished = command_line(
            "--source", tiny.parent, "--out", tmp_path / str(hash_seed), cwd=cwd, hash_seed=hash_seed
        )
        assert finished.returncode == 0, finished.stderr
    first, second = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "01")
    assert first.keys() == {"tiny.ipynb", "tiny_tpu.ipynb"}
    assert first == second


def test_notebooks_are_valid_nbformat_4_5_without_outputs(tiny):
    for content in build.render(tiny.parent).values():
        assert content.endswith(b"}\n")
        notebook = nbformat.reads(content.decode(), as_version=nbformat.NO_CONVERT)
        nbformat.validate(notebook)
        assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert code
        assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


def test_metadata_names_the_kernel_and_the_colab_runtime_and_nothing_else(tiny):
    common = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    gpu = {"accelerator": "GPU", "colab": {"gpuType": "T4", "provenance": []}}
    tpu = {"accelerator": "TPU", "colab": {"gpuType": "V5E1", "provenance": []}}
    assert build.notebook(tiny, "gpu").metadata == common | gpu
    assert build.notebook(tiny, "tpu").metadata == common | tpu


def test_twins_differ_in_tagged_cells_and_marked_lines_alone(tiny):
    gpu, tpu = ({cell.id: cell for cell in build.twin_cells(tiny, twin)} for twin in ("gpu", "tpu"))
    assert list(gpu) == ["tiny-00", "tiny-02", "tiny-03", "tiny-04", "tiny-05"]
    assert list(tpu) == ["tiny-00", "tiny-01", "tiny-02", "tiny-03", "tiny-05"]
    assert gpu["tiny-04"].source == 'device = "cuda"'
    assert tpu["tiny-01"].source == "For a TPU."
    assert {cell_id for cell_id in gpu.keys() & tpu.keys() if gpu[cell_id] != tpu[cell_id]} == {"tiny-03"}
    assert gpu["tiny-03"].source == PARAMETERS.format(False)
    assert tpu["tiny-03"].source == PARAMETERS.format(True)


def test_tags_stay_and_only_the_setup_cell_is_collapsed(tiny):
    metadata = {cell.id: cell.metadata for cell in build.twin_cells(tiny, "gpu")}
    assert metadata == {
        "tiny-00": {},
        "tiny-02": {"tags": ["setup"], "cellView": "form", "jupyter": {"source_hidden": True}},
        "tiny-03": {"tags": ["parameters"]},
        "tiny-04": {"tags": ["gpu"]},
        "tiny-05": {},
    }


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("# requirements: matplotlib", "# requirements: matplotlib nowhere", "nowhere: not in requirements-gpu.txt"),
        ("# requirements: matplotlib", "import helpers", "must hold `# requirements:"),
        ('tags=["setup"]', "", "exactly one cell"),
        ('tags=["gpu"]', 'tags=["gpu", "tpu"]', "cell 4 is tagged gpu and tpu"),
        ('device = "cuda"', 'device = "cuda"  # tpu only', "cell 4 has no line left in the gpu twin"),
        ("# %% [markdown]\n# # Tiny", "# %% [raw]\n# # Tiny", "cell 0 is raw"),
    ],
)
def test_a_source_that_is_not_understood_is_an_error(tiny, old, new, message):
    assert old in TINY
    tiny.write_text(TINY.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(message)):
        build.twin_cells(tiny, "gpu")


def test_a_folder_without_sources_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no notebook source"):
        build.render(tmp_path)


def test_requirements_are_the_lines_of_the_twins_file_and_torch_brings_torch_xla():
    gpu = (ROOT / "requirements-gpu.txt").read_text(encoding="utf-8").splitlines()
    tpu = (ROOT / "requirements-tpu.txt").read_text(encoding="utf-8").splitlines()
    chosen = build.requirement_lines(["sentence-transformers", "torch"], "gpu")
    assert [re.split(r"[<>=\[]", line)[0] for line in chosen] == ["sentence-transformers", "torch"]
    assert set(chosen) <= set(gpu)
    chosen = build.requirement_lines(["torch", "datasets"], "tpu")
    assert [re.split(r"[<>=\[]", line)[0] for line in chosen] == ["torch", "torch_xla", "datasets"]
    assert set(chosen) <= set(tpu)


def test_check_passes_on_what_was_built_and_names_each_notebook_that_differs(tiny, tmp_path):
    arguments = ("--source", tiny.parent, "--out", tmp_path)
    assert command_line(*arguments).returncode == 0
    assert command_line("--check", *arguments).returncode == 0

    stale = tmp_path / "tiny_tpu.ipynb"
    stale.write_bytes(stale.read_bytes().replace(b"For a TPU.", b"For a TPU!"))
    (tmp_path / "tiny.ipynb").rename(tmp_path / "renamed.ipynb")
    finished = command_line("--check", *arguments)
    assert finished.returncode == 1
    assert finished.stderr.splitlines() == [
        "missing: tiny.ipynb",
        "stale: tiny_tpu.ipynb",
        "extra: renamed.ipynb (it has no source; delete it)",
        "run `make notebooks`",
    ]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_committed_notebooks_are_what_their_source_builds(source):
    for twin, suffix in build.SUFFIX.items():
        committed = ROOT / "notebooks" / f"{source.stem}{suffix}.ipynb"
        built = nbformat.writes(build.notebook(source, twin)) + "\n"
        assert committed.read_text(encoding="utf-8") == built, f"{committed.name} is stale: run `make notebooks`"


def test_every_committed_notebook_has_a_source():
    expected = {f"{source.stem}{suffix}.ipynb" for source in SOURCES for suffix in ("", "_tpu")}
    assert {path.name for path in (ROOT / "notebooks").glob("*.ipynb")} == expected


# ---- the payload ----


def test_payload_depends_on_the_files_alone():
    files = {"helpers/b.py": b"2\n", "helpers/__init__.py": b"1\n"}
    assert build.payload(files) == build.payload(dict(reversed(files.items())))
    assert build.payload(files) != build.payload(files | {"helpers/b.py": b"3\n"})


def test_payload_unpacks_to_the_package_and_carries_its_hash(tiny):
    setup = build.twin_cells(tiny, "gpu")[1].source
    constants = dict(re.findall(r'^(SHA256|PAYLOAD) = "(.+)"$', setup, re.MULTILINE))
    archive = zipfile.ZipFile(io.BytesIO(decompress(b85decode(constants["PAYLOAD"]))))
    names = archive.namelist()
    on_disk = [path for path in (ROOT / "helpers").rglob("*") if path.suffix == ".py"]
    assert names == sorted(path.relative_to(ROOT).as_posix() for path in on_disk)
    assert all(archive.read(name) == (ROOT / name).read_bytes() for name in names)
    joined = b"".join(name.encode() + b"\0" + archive.read(name) for name in names)
    assert constants["SHA256"] == hashlib.sha256(joined).hexdigest()


def test_setup_cell_says_what_it_carries_before_the_payload(tiny):
    header = build.twin_cells(tiny, "gpu")[1].source.partition("PAYLOAD = ")[0]
    assert header.startswith("# @title Setup: unpack helpers, install what is missing")
    assert "#   helpers/setup.py\n" in header
    assert "`pip install helpers` would install a stranger's" in header
    assert bootstrap.content_hash(bootstrap.package_files(ROOT)) in header


# ---- the setup cell, run ----


class Machine:
    """An otherwise empty folder to run a setup cell in, with a temporary folder of its own."""

    def __init__(self, folder: Path, cell: str):
        self.cwd, self.temp = folder / "empty", folder / "temp"
        self.cwd.mkdir()
        self.temp.mkdir()
        self.cell = folder / "cell.txt"
        self.cell.write_text(cell, encoding="utf-8")

    @property
    def environment(self) -> dict[str, str]:
        return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"TMPDIR": str(self.temp)}

    def run(self, *lines: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
        """Run a script in which `setup()` runs the cell, as plain exec does: with no `__name__`."""
        script = f"def setup():\n    exec(open({str(self.cell)!r}, encoding='utf-8').read(), {{}})\n"
        return subprocess.run(
            [sys.executable, "-c", script + "\n".join(lines)],
            cwd=cwd or self.cwd,
            env=self.environment,
            capture_output=True,
            text=True,
        )

    def unpacked(self) -> list[Path]:
        return list(self.temp.glob("helpers-*"))


@pytest.fixture
def machine(tiny, tmp_path):
    return Machine(tmp_path, build.twin_cells(tiny, "gpu")[1].source)


def write_stranger(folder: Path) -> None:
    (folder / "helpers").mkdir(parents=True)
    (folder / "helpers" / "__init__.py").write_text("stranger = True\n", encoding="utf-8")
    (folder / "helpers" / "setup.py").write_text("stranger = True\n", encoding="utf-8")


def test_setup_cell_alone_in_an_empty_folder_imports_the_payload(machine):
    finished = machine.run("setup()", REPORT)
    assert finished.returncode == 0, finished.stderr
    file, _ = json.loads(finished.stdout.splitlines()[-1])
    (unpacked,) = machine.unpacked()
    assert Path(file) == unpacked / "helpers" / "__init__.py"
    assert bootstrap.package_files(unpacked) == bootstrap.package_files(ROOT)
    assert list(machine.cwd.iterdir()) == []


@pytest.mark.parametrize("before", ["", "import helpers.setup"], ids=["importable", "imported"])
def test_setup_cell_wins_over_a_strangers_helpers(machine, before):
    write_stranger(machine.cwd)
    finished = machine.run(before, "setup()", REPORT, "import helpers.setup; helpers.setup.install('')")
    assert finished.returncode == 0, finished.stderr
    file, is_stranger = json.loads(finished.stdout.splitlines()[-1])
    assert Path(file).parents[1] in machine.unpacked()
    assert not is_stranger
    assert f"{machine.cwd / 'helpers'} is not this notebook's version: not used" in finished.stdout


def test_setup_cell_stops_when_a_stranger_is_imported_all_the_same(machine, tmp_path):
    write_stranger(tmp_path / "site")
    hijack = f"""
import sys, importlib.machinery
class Finder:
    def find_spec(name, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, [{str(tmp_path / "site")!r}]) if name == "helpers" else None
sys.meta_path.insert(0, Finder)"""
    finished = machine.run(hijack, "setup()")
    assert finished.returncode == 1
    message = finished.stderr.splitlines()[-1]
    assert message.startswith(f"RuntimeError: `import helpers` found {tmp_path / 'site'}")
    assert "Do not pip install helpers" in message


def test_setup_cell_prefers_a_checkout_of_the_same_content(machine, tmp_path):
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "helpers", checkout / "helpers", ignore=shutil.ignore_patterns("__pycache__"))
    (checkout / "notebooks" / "source").mkdir(parents=True)
    finished = machine.run("setup()", REPORT, cwd=checkout / "notebooks" / "source")
    assert finished.returncode == 0, finished.stderr
    assert Path(json.loads(finished.stdout.splitlines()[-1])[0]) == checkout / "helpers" / "__init__.py"
    assert machine.unpacked() == []


def test_setup_cell_passes_over_a_checkout_that_differs_in_one_byte(machine, tmp_path):
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "helpers", checkout / "helpers", ignore=shutil.ignore_patterns("__pycache__"))
    with (checkout / "helpers" / "setup.py").open("ab") as file:
        file.write(b"\n")
    finished = machine.run("setup()", REPORT, cwd=checkout)
    assert finished.returncode == 0, finished.stderr
    assert Path(json.loads(finished.stdout.splitlines()[-1])[0]).parents[1] in machine.unpacked()
    assert "not used (in a checkout: make notebooks)" in finished.stdout


def test_running_the_setup_cell_again_reuses_what_is_imported(machine):
    again = "import helpers; first = helpers; setup(); import helpers; assert helpers is first"
    finished = machine.run("setup()", again, "import sys; assert len(sys.path) == len(set(sys.path))")
    assert finished.returncode == 0, finished.stderr
    assert len(machine.unpacked()) == 1


def test_another_notebooks_helpers_in_the_same_kernel_are_dropped(machine):
    edit = "import helpers, pathlib; old = helpers; pathlib.Path(helpers.__file__).write_text('')"
    finished = machine.run("setup()", edit, "setup()", "import helpers; assert helpers is not old")
    assert finished.returncode == 0, finished.stderr
    assert len(machine.unpacked()) == 2


@pytest.mark.parametrize("damage", ["truncated", "other content"])
def test_setup_cell_refuses_a_damaged_payload(machine, damage):
    cell = machine.cell.read_text(encoding="utf-8")
    good = re.search(r'^PAYLOAD = "(.+)"$', cell, re.MULTILINE).group(1)
    other = build.payload({"helpers/__init__.py": b"stranger = True\n"})
    bad = good[: len(good) // 2] if damage == "truncated" else other
    machine.cell.write_text(cell.replace(good, bad), encoding="utf-8")
    finished = machine.run("setup()")
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1].startswith("RuntimeError: The setup cell's payload is damaged")
    assert machine.unpacked() == []


def test_a_built_notebook_runs_alone_in_a_kernel(tiny, machine):
    """papermill with a parameter, one .ipynb in an empty folder, no PYTHONPATH: what an upload to Colab gives."""
    notebook = machine.cwd / "tiny.ipynb"
    notebook.write_bytes(build.render(tiny.parent)["tiny.ipynb"])
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "papermill",
            notebook.name,
            "executed.ipynb",
            "-p",
            "use_tpu",
            "True",
            "--no-progress-bar",
        ],
        cwd=machine.cwd,
        env=machine.environment,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    executed = nbformat.read(machine.cwd / "executed.ipynb", as_version=4)
    printed = executed.cells[-1].outputs[0].text
    (unpacked,) = machine.unpacked()
    assert printed == f"{unpacked / 'helpers' / '__init__.py'} True\n"
