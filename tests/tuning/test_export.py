"""The tuned settings carried away: a script that trains with stock transformers, without this suite."""

import json

import pytest
from transformers import Trainer, pipeline

from helpers.machine import runtime
from helpers.tuning import export
from helpers.tuning.data import load_texts
from helpers.tuning.parameters import TuningParameters
from helpers.tuning.training import BATCH, ClassifierTrainer, load_task
from tests.harness import printed
from tests.tuning_run import WORDS, write_csv

pytestmark = pytest.mark.once


# Tells how every training step computes, whichever trainer takes it.
RECORDER = """
import torch, transformers
from transformers import Trainer

steps, take = [], Trainer.training_step

def watched(self, model, inputs, *args, **kwargs):
    def forward(module, args):
        settings.append(torch.is_autocast_enabled("cpu") and str(torch.get_autocast_dtype("cpu")))
    settings = []
    hook = model.get_submodule("classifier").register_forward_pre_hook(forward)
    loss = take(self, model, inputs, *args, **kwargs)
    hook.remove()
    optimizer = self.optimizer.optimizer
    padded = inputs["input_ids"].shape[1] - int(inputs["attention_mask"].sum(1).max())
    steps.append({
        "examples": len(inputs["input_ids"]), "padding beyond the longest": padded, "autocast": settings,
        "attention": model.config._attn_implementation, "checkpointing": model.is_gradient_checkpointing,
        "optimizer": type(optimizer).__name__, "fused": optimizer.defaults["fused"],
        "weights": str(next(model.parameters()).dtype), "workers": self.args.dataloader_num_workers,
    })
    return loss

Trainer.training_step = watched
"""
STOCK = """
import json, runpy, sys
sys.argv = ["train.py", "stock/texts.csv"]
runpy.run_path("stock/train.py", run_name="__main__")
print("STEPS " + json.dumps(steps))
"""


@pytest.fixture(scope="module")
def carried(tmp_path_factory):
    """(task, settings, folder) of settings that were never tuned, on texts that are written here."""
    folder = tmp_path_factory.mktemp("carried")
    write_csv(folder / "texts.csv", 260)
    given = {
        "data_source": str(folder / "texts.csv"),
        "base_model": "sample",
        "max_length": 64,
        "learning_rate": 1e-3,
        "max_steps": 60,
    }
    params = TuningParameters(**TuningParameters.defaults().model_dump() | given)
    task = load_task(params, load_texts(params), runtime.detect(False, "fp32"))
    settings = task.start | {BATCH: 16, "train_sampling_strategy": "group_by_length"}
    export.write_stock(task, settings, folder / "stock")
    return task, settings, folder


@pytest.mark.slow
def test_the_script_trains_on_a_csv_without_this_suite(carried):
    _, _, folder = carried
    output = printed("-I", "stock/train.py", "texts.csv", cwd=folder)
    assert float(output.rsplit("texts: ", 1)[1]) > 0.9
    classify = pipeline("text-classification", str(folder / "stock/trained"), device="cpu")
    assert [classify(words)[0]["label"] for words in WORDS.values()] == [*WORDS]


@pytest.mark.parametrize(
    "changes",
    [
        {"bf16": True, BATCH: 32, "pad_to_multiple_of": 8},
        pytest.param({"dataloader_num_workers": 1, "optim": "adamw_torch"}, marks=pytest.mark.slow),
    ],
    ids=["bf16", "workers"],
)
def test_each_step_of_the_script_computes_as_the_tuned_run_did(changes, carried, tmp_path, monkeypatch):
    task, settings, folder = carried
    settings = settings | changes
    export.write_stock(task, settings, folder / "stock")
    theirs = json.loads(printed("-I", "-c", RECORDER + STOCK, cwd=folder).rsplit("STEPS ", 1)[1])
    assert abs(len(theirs) - task.examples / settings[BATCH]) <= 3  # a pass may end in a smaller batch
    theirs = [step for step in theirs if step["examples"] == settings[BATCH]]
    ours = watched_steps(ClassifierTrainer(task, settings, tmp_path / "ours", 3 * settings[BATCH]), monkeypatch)
    assert len(ours) == 3
    for name in ours[0].keys() - {"padding beyond the longest"}:
        assert {json.dumps(step[name]) for step in theirs} == {json.dumps(step[name]) for step in ours}, name
    padded = max(step["padding beyond the longest"] for step in theirs + ours)
    assert padded < (settings.get("pad_to_multiple_of") or 1)
    precision = "torch.bfloat16" if settings.get("bf16") else False
    assert theirs[0]["autocast"] == [precision] and theirs[0]["examples"] == settings[BATCH]


def watched_steps(trainer, monkeypatch) -> list[dict]:
    """How each training step of a run computes."""
    monkeypatch.setattr(Trainer, "training_step", Trainer.training_step)  # put back after the test
    names = {}
    exec(RECORDER, names)
    trainer.train()
    return names["steps"]
