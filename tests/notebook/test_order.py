"""The cells of a notebook in any order, in one live kernel: what is saved was made by the settings beside it, or a cell is refused."""

import hashlib
import json
import random
import re
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.manager import run_kernel
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook
from traitlets.config import Config

from helpers.notebook import method, order
from helpers.notebook.order import METHOD
from tests.harness import ROOT, START, printed

from .test_notebooks import TINY

SMALL = {**TINY, "max_steps": 4, "eval_steps": 2, "output_dir": "out"}
SHOWN = "helpers/reservoir/model.py"
LINE, EDITED = "torch.tanh(torch.baddbmm", "torch.sin(torch.baddbmm"
LIST = re.compile(r"^- (.+)$", re.MULTILINE)
SIGNAL = "__import__('os').kill(__import__('os').getpid(), 2)"
# A signal at the end of a cell, when all of its names are there.
STOP = f"\n{SIGNAL}\n__import__('time').sleep(60)"
# A signal in the second step of a training.
CALLBACK = f"""
import transformers
class Stop(transformers.TrainerCallback):
    armed = True
    def on_step_begin(self, args, state, control, **kwargs):
        if self.armed:
            self.armed = False
            {SIGNAL}
"""


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory) -> Path:
    """The notebooks as this checkout builds them."""
    folder = tmp_path_factory.mktemp("notebooks")
    printed("notebooks/build.py", "--out", folder)
    return folder


class Live:
    """A notebook's own code cells in one kernel, by the titles that its errors give them."""

    def __init__(self, kernel, notebook: Path, parameters: dict):
        self.kernel = kernel
        cells = parameterize_notebook(load_notebook_node(str(notebook)), parameters).cells
        code = [cell.source for cell in cells if cell.cell_type == "code"]
        self.setup, self.form, self.set, *rest = code
        table = re.search(r'^CELLS = r"""(.+)"""$', self.setup, re.MULTILINE)[1]
        self.titles = [fields[0] for fields in json.loads(table)]
        self.cells = dict(zip(self.titles, [self.form, *rest], strict=True))

    def run(self, code: str) -> str:
        """The error of a cell, or ""."""
        reply = self.kernel.execute_interactive(code, output_hook=lambda message: None, timeout=600)["content"]
        return "" if reply["status"] == "ok" else f"{reply['ename']}: {reply['evalue']}"

    def change(self, **values) -> None:
        assert not self.run("\n".join(f"{name} = {value!r}" for name, value in values.items()))

    def code(self) -> list[str]:
        """All cells, from the first to the last."""
        return [self.setup, self.form, self.set, *[*self.cells.values()][1:]]

    def run_all(self) -> None:
        for code in self.code():
            error = self.run(code)
            assert not error, error

    def follow(self, title: str) -> list[str]:
        """Runs a cell; while it is refused, first the cells that the error lists. Returns the titles of those."""
        ran = []
        while error := self.run(self.cells[title]):
            assert error.startswith("OutOfOrder"), error
            listed = LIST.findall(error)
            assert listed == sorted(listed, key=self.titles.index) and len(ran) < 40, error
            for each in listed:
                ran += [*self.follow(each), each]
        return ran


def described(folder: str | Path) -> dict:
    """Results of a run. Asserts that they describe what its folder says was trained."""
    folder = Path(folder)
    results, run = (json.loads((folder / name).read_text()) for name in ("results.json", "run.json"))
    assert {name: results["parameters"][name] for name in run["parameters"]} == run["parameters"]
    assert results["code"]["method"]["sha256"] in run["method"].values()
    text = (folder / results["code"]["method"]["file"]).read_text()
    assert method.digest(text) == results["code"]["method"]["sha256"]
    return results


def saved(folder: str | Path) -> tuple[dict, str]:
    """Results of a run, and the digest of the weights that it saved."""
    weights = Path(folder) / "model/model.safetensors"
    return described(folder), hashlib.sha256(weights.read_bytes()).hexdigest()


def trained(folder: Path) -> tuple:
    """What a run trained: seed, the method's digest; and then the last loss and the digests of the last checkpoint's weights."""
    results = described(folder)
    last = folder / f"checkpoint-{results['train']['steps']}"
    weights = [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(last.glob("*.safetensors"))]
    assert weights
    return (results["seed"], results["code"]["method"]["sha256"]), (results["train"]["loss_last"], *weights)


@pytest.mark.once
def test_cells_in_any_order_of_one_kernel_save_what_was_trained_or_are_refused(notebooks, alone):
    with run_kernel(startup_timeout=START) as kernel:
        live = Live(kernel, notebooks / "tinystories_reservoir.ipynb", SMALL)
        *_, train, _, _, save, _ = live.titles
        assert not live.run(live.setup)
        error = live.run(live.cells[train])
        assert LIST.findall(error) == [
            title for title in live.titles[: live.titles.index(train)] if "costs" not in title
        ]
        live.run_all()
        weights = saved("out")[1]

        live.change(units=256, output_dir="wide")  # the settings, and then the cells that one thinks of
        assert not live.run(live.cells[live.titles[1]])
        assert "model" in live.run(live.cells[train]) and "trainer" in live.run("print(trainer)")
        assert train in live.follow(save)
        assert saved("wide")[0]["parameters"]["units"] == 256 and not Path("wide/results.json").samefile(
            "out/results.json"
        )

        (shown,) = (title for title, code in live.cells.items() if code.startswith("%%writefile"))
        live.cells[shown] = live.cells[shown].replace(LINE, EDITED)
        live.change(units=SMALL["units"], output_dir="out")
        live.follow(save)
        (folder,) = alone.glob("out-edited-*")
        results, edited = saved(folder)
        assert results["code"]["method"]["edited"] and edited != weights
        assert EDITED in (folder / "model/model.py").read_text()  # what loads it elsewhere
        # Neither a second notebook with the same payload nor the checkout sees the edit.
        assert not [*(alone.parent / "home/.cache").rglob("model.py")]
        assert EDITED not in (ROOT / SHOWN).read_text()


WRONG = [
    ({"max_stepz": 3}, "max_stepz"),
    ({"resume": "false"}, "resume='false'"),
    ({"max_steps": -1}, "max_steps=-1"),
    ({"data_source": "no/such/stories.txt"}, "data_source='no/such/stories.txt'"),
    ({"learning_rate": "1e-3"}, "learning_rate='1e-3'"),
    ({"memory": "lstm"}, "memory='lstm'"),
    ({"units": 200}, "units=200"),
]


@pytest.mark.once
def test_a_wrong_parameter_is_an_error_that_names_it_before_anything_is_written(notebooks, alone):
    with run_kernel(startup_timeout=START) as kernel:
        for parameters, message in WRONG:
            live = Live(kernel, notebooks / "tinystories_reservoir.ipynb", {**SMALL, **parameters})
            assert message in next(filter(None, map(live.run, live.code())))
    assert not Path("out").exists()


HOUR_PASSED = """
from helpers.run import folder_lock
folder_lock._began.update({path: began - 3600 for path, began in folder_lock._began.items()})
"""


@pytest.mark.once
def test_the_training_cell_has_its_time_anew_each_time_and_can_be_run_again_after_the_export(notebooks, alone):
    with run_kernel(startup_timeout=START) as kernel:
        live = Live(kernel, notebooks / "tinystories_reservoir.ipynb", {**SMALL, "max_hours": 1.0})
        *before, train, _, _, save, _ = live.titles
        for code in live.code()[: 2 + len(before)]:
            assert not live.run(code)
        assert not live.run(HOUR_PASSED)
        assert live.run(live.cells[train]).startswith("Stopped: max_hours=1 at step 1")
        assert not live.run(live.cells[train])  # the other three steps
        live.follow(save)
        results, weights = saved("out")
        assert (results["train"]["steps"], results["train"]["resumed_from_step"]) == (SMALL["max_steps"], 1)
        live.follow(train)
        live.follow(save)
        assert saved("out")[1] == weights


# What a random order may do to a notebook: parameters, a line of its method, the same line edited, cells that are left out.
LEGAL = {"data_source": "sample", "base_model": "sample", "max_steps": 4, "save_steps": 2, "batch_size": 8}
LEJEPA = {**LEGAL, "num_samples": 400, "output_dim": 48, "max_seq_length": 32, "train_length": 32, "batch_size": 16}
ORDERS = {
    "tinystories_reservoir": (SMALL, LINE, EDITED, 10),
    "legal_cot_sft": (LEGAL, "loss = summed /", "loss = 2 * summed /", 10),
    "lejepa_training": (LEJEPA, "return N * total", "return 2 * N * total", 10),
}
STOP_IN_BEST = f"""
def stop_in_best(load=trainer._load_best):
    del trainer._load_best
    {SIGNAL}
    load()
trainer._load_best = stop_in_best
"""
REFUSALS = ("OutOfOrder", "Stopped", "KeyboardInterrupt", "ValueError: this model was exported")
ACTIONS = {"run": 10, "stop": 3, "stop in best": 1, "edit": 1, "change": 1}
SLOW_ONCE = (pytest.mark.slow, pytest.mark.once)
ORDER_CASES = [
    pytest.param("tinystories_reservoir", 0, marks=pytest.mark.once),
    pytest.param("legal_cot_sft", 0, marks=pytest.mark.once),
    *(pytest.param("tinystories_reservoir", seed, marks=SLOW_ONCE) for seed in (1, 2)),
    pytest.param("legal_cot_sft", 1, marks=SLOW_ONCE),
    pytest.param("lejepa_training", 0, marks=SLOW_ONCE),
    pytest.param("tinystories_reservoir_tpu", 0, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "number"), ORDER_CASES)
def test_in_a_random_order_results_describe_what_was_trained_or_cells_are_named(
    notebooks, alone, request, name, number
):
    values, line, edited, end = ORDERS[name.removesuffix("_tpu")]
    if name.endswith("_tpu"):
        request.getfixturevalue("eight_devices")
        values = {**values, "precision": "fp32"}  # a CPU emulates bf16 for XLA
    draw, results, history = random.Random(number), {}, []
    with run_kernel(startup_timeout=START) as kernel:
        live = Live(kernel, notebooks / f"{name}.ipynb", {**values, "output_dir": "0"})
        titles = live.titles[1:end]
        (shown,) = (title for title, code in live.cells.items() if code.startswith("%%writefile"))
        train = next(
            title for title, code in live.cells.items() if re.search(r"\btrainer\.train\(|= train\(trainer", code)
        )
        for code in live.code()[:3]:
            assert not live.run(code)

        chosen = {"seed": 0, "output_dir": "0"}

        def edit() -> None:
            """Changes the line of the method, or changes it back."""
            before, after = (line, edited) if line in live.cells[shown] else (edited, line)
            live.cells[shown] = live.cells[shown].replace(before, after)

        def run(title: str) -> str:
            if title != live.titles[0]:
                return live.run(live.cells[title])
            assert not live.run(live.form) and not live.run(live.set)
            live.change(**chosen)
            return ""

        def finish(title: str = titles[-1]) -> None:
            """As a person would who reads the errors."""
            for _ in range(8):
                error = run(title)
                if not error:
                    return
                assert error.startswith(REFUSALS), error
                for needed in LIST.findall(error):
                    finish(needed)
                if "exported" in error:
                    run(titles[0])
            raise AssertionError(error)

        def look() -> None:
            for file in alone.glob("*/results.json"):
                run, weights = trained(file.parent)
                assert results.setdefault(run, weights) == weights, (run, file)

        for action in draw.choices([*ACTIONS], [*ACTIONS.values()], k=30):
            title = draw.choice(titles)
            history.append((action, title))
            if action == "change":
                seed = 1 - chosen["seed"]
                chosen = {"seed": seed, "output_dir": str(seed)}
                live.change(**chosen)
                continue
            code = live.cells[title]
            if action == "edit":
                edit()
                code = live.cells[shown]
            elif action == "stop in best":
                code = STOP_IN_BEST + live.cells[train]
            elif action == "stop" and title == train:
                code = CALLBACK + "trainer.add_callback(Stop())\n" + code
            elif action == "stop" and title != shown:
                code += STOP
            error = live.run(code)
            history[-1] += (error.partition(":")[0],)
            assert not error or error.startswith(REFUSALS), (history, error)
            look()
        finish()
        look()
        assert results
        for run_seed, digest in [*results]:  # each from its first to its last cell, in folders of their own
            if digest != method.digest(live.cells[shown].partition("\n")[2]):
                edit()
            chosen = {"seed": run_seed, "output_dir": f"again-{run_seed}-{digest[:8]}"}
            live.change(**chosen)
            finish()
        look()


def test_the_cell_of_the_method_writes_nothing_before_there_is_a_run(tmp_path, monkeypatch):
    from IPython.testing.globalipapp import start_ipython

    monkeypatch.chdir(tmp_path)
    shell = start_ipython()
    shell.user_ns.pop("run", None)
    assert not shell.run_cell(f"%%writefile {METHOD}\nx = 1\n").success
    assert not [*tmp_path.iterdir()]


def test_a_cell_that_goes_on_with_a_name_of_its_own_finds_it_there():
    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    order.watch(shell, json.dumps([("Count", ["count"], [], [], [])]))
    for code in ("count = 1", "count = count + 1"):
        assert shell.run_cell(code).success
    assert shell.user_ns["count"] == 2
