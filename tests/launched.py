"""The five notebooks' trainers as `torchrun -m helpers.batch.processes tests.launched:train` runs them, in one process or several.

Small models, real trainers, the same examples a step however many processes share them, and no dropout, which is each
process's own.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

STEPS = 4
BATCH = 8
MODELS = "reservoir legal lejepa graphmer tuning"


def linger(folder: str) -> None:
    from helpers.machine import ranks

    if ranks.is_main():
        (Path(folder) / "here").touch()
    time.sleep(600)


def fail(missing: str) -> None:
    from helpers.machine import ranks

    if ranks.rank() == 1:
        Path(missing).read_bytes()
    ranks.gather(None)


def train(folders: str, models: str = MODELS, halfway: str = "", pause: str = "0") -> None:
    """In each folder, trains each of `models` in one of its own, and writes losses.json: losses, gradient norms and so on.

    Of a folder that is there, the models that it holds go on.

    halfway: a folder that keeps each run as it was after half of the steps. pause: seconds that evaluations take longer.
    """
    _without_dropout()
    PAUSE.append(float(pause))
    for folder in folders.split():
        _train(folder, models, halfway)


def _train(folder: str, models: str, halfway: str) -> None:
    from helpers.machine import ranks

    found = {}
    there = ranks.broadcast([path.name for path in Path(folder).glob("*")])
    for name in (each for each in models.split() if not there or each in there):
        if halfway:
            _stopping_after(STEPS // 2, lambda name=name: RUNS[name](Path(folder) / name))
            with ranks.main_process_first():
                if ranks.is_main():
                    shutil.copytree(Path(folder) / name, Path(halfway) / name)
        history = RUNS[name](Path(folder) / name)
        wanted = [
            key
            for key in ("loss", "grad_norm", "eval_loss", "eval_f1", "eval_retrieval_cosine_ndcg@10")
            if any(key in entry for entry in history)
        ]
        found[name] = {key: [entry[key] for entry in history if key in entry] for key in wanted}
    if ranks.is_main():
        (Path(folder) / "losses.json").write_text(json.dumps(found))


def _without_dropout() -> None:
    from torch.nn import functional

    attention = functional.scaled_dot_product_attention
    functional.dropout = lambda values, *args, **kwargs: values
    functional.scaled_dot_product_attention = lambda *args, dropout_p=0.0, **kwargs: attention(*args, **kwargs)


def _stopping_after(steps: int, run) -> None:
    from transformers import TrainerCallback

    from helpers.train.trainer import TrainerMixin

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == steps:
                control.should_save = control.should_training_stop = True

    original = TrainerMixin.train

    def stopping(trainer, *args, **kwargs):
        trainer.add_callback(Stop())
        return original(trainer, *args, **kwargs)

    TrainerMixin.train = stopping
    try:
        run()
    finally:
        TrainerMixin.train = original


def reservoir(folder: Path) -> list[dict]:
    from tests import training_run

    options = {"accumulation": 1, "batch_size": BATCH, "dropout": 0.0, "steps": STEPS, "save_steps": STEPS // 2}
    options |= {"evaluation_pause": PAUSE[-1]}
    return training_run.main(str(folder), training_run.DEFAULTS | options)["log_history"]


def lejepa(folder: Path) -> list[dict]:
    """In chunks, with the contrastive term; SIGReg's statistic is that of all processes."""
    from helpers.machine import ranks
    from tests import lejepa_run

    options = {"batch_size": BATCH, "dropout": 0.0, "steps": STEPS, "save_steps": STEPS // 2, "eval_steps": STEPS // 2}
    options |= {"batch_size": BATCH // 2, "accumulation": 2}
    built = lejepa_run.build_model

    def one_after_the_other(*args, **kwargs):
        with ranks.main_process_first():
            return built(*args, **kwargs)

    lejepa_run.build_model = one_after_the_other
    try:
        return lejepa_run.main(str(folder), lejepa_run.DEFAULTS | options)["history"]
    finally:
        lejepa_run.build_model = built


def graphmer(folder: Path) -> list[dict]:
    """In-batch tails are those of a micro-batch, which stays the same size: processes take the place of accumulation."""
    import http
    import json as package

    from helpers.graphmer import experiment
    from helpers.machine import ranks
    from tests import graph_run

    sources = folder.with_name("sources")
    with ranks.main_process_first():
        if ranks.is_main() and not sources.exists():
            for each in (package, http):
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(Path(each.__file__).parent, sources / each.__name__, ignore=ignored)
    changes = {
        "run.max_steps": STEPS,
        "run.eval_interval_steps": STEPS // 2,
        "run.save_interval_steps": STEPS // 2,
        "run.gradient_accumulation_steps": 4 // ranks.count(),
        "training_data.micro_batch_size": 4,
        "evaluation.micro_batch_size": 4,
        "evaluation.held_out": 0.15,  # 121 sequences: whole batches of 4 and of 8 leave the same one out
        "regularizers.ontology_constraints.acyclicity_weight": 0.0,  # draws a third entity at random
    }
    load = experiment.load_corpus

    def read(source, configuration):
        if not CORPUS:
            CORPUS.append(load(source, configuration))
        return CORPUS[0]

    experiment.load_corpus = read
    try:
        return graph_run.main(str(folder), graph_run.DEFAULTS | {"data": str(sources), "changes": changes})["history"]
    finally:
        experiment.load_corpus = load


def tuning(folder: Path) -> list[dict]:
    from tests import tuning_run

    trainer = tuning_run.trainer_of(tuning_run.machine("cpu"), folder, {}, steps=STEPS)
    trainer.args.logging_steps = trainer.state.logging_steps = 1
    trainer.train()
    return trainer.state.log_history


def legal(folder: Path) -> list[dict]:
    from helpers.legal import experiment
    from helpers.legal.parameters import LegalParameters
    from helpers.train import checkpoint

    params = LegalParameters(**LEGAL | {"output_dir": str(folder)})
    experiment.train_together(json.dumps(params.model_dump()))
    newest = checkpoint.listed(folder)[0]
    return json.loads((newest / "trainer_state.json").read_text())["log_history"]


PAUSE = [0.0]
CORPUS = []  # of code, read once
LEGAL = {
    "data_source": "sample",
    "base_model": "sample",
    "num_records": 60,
    "layout": "instruction",
    "method": "full",
    "max_length": 384,
    "precision": "fp32",
    "max_steps": STEPS,
    "batch_size": 4,
    "learning_rate": 0.01,
    "logging_steps": 1,
    "eval_steps": STEPS // 2,
    "save_steps": STEPS // 2,
    "test_records": 1,
    "max_new_tokens": 8,
}
RUNS = {each.__name__: each for each in (reservoir, legal, lejepa, graphmer, tuning)}
