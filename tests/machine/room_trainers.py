"""Each notebook's trainer at a tiny size, in a process of its own, on a card that the CPU stands in for.

python -m tests.machine.room_trainers OUTPUT_DIR '{"room": "legal", "card": "T4", ...}'  prints one line of JSON at the end.
"""

from pathlib import Path

from tests import driver

DEFAULTS = {
    "room": "reservoir",  # a key of ROOMS
    "card": "",  # of CUDA, in whose place the CPU stands
    "precision": "fp32",
    "dropout": 0.1,
    "steps": 4,
    "kill_step": 0,  # kill -9 inside this step
    "overflows": [],  # steps with an infinite gradient
    "exhausted": [],  # where memory runs out, once each: "backward", "update"
}
BATCH, LENGTH = 8, 16
EVERY = 2  # steps between two checkpoints and evaluations


def changes_of_plan(machine, options: dict) -> dict:
    optimizer = "adamw_torch_fused" if machine.kind == "cuda" else "adamw_torch"
    return {"optimizer": optimizer}


def short(options: dict) -> dict:
    """The options of a run of a room's own script."""
    return {name: options[name] for name in ("dropout", "steps")} | {"batch_size": BATCH, "save_steps": EVERY}


def reservoir(machine, folder: Path, options: dict):
    import numpy as np

    from helpers.reservoir.counts import Counts
    from helpers.reservoir.training import DrawnTokens, LanguageModelTrainer
    from helpers.train.arguments import training_arguments
    from tests import training_run
    from tests.workloads import plan_by_hand

    tokens = np.random.default_rng(0).integers(0, 200, 600)
    plan = plan_by_hand(
        machine, batch_size=BATCH, steps=options["steps"], length=1, **changes_of_plan(machine, options)
    )
    how = {"logging_steps": 1, "eval_steps": EVERY, "save_steps": EVERY, "remove_unused_columns": False}
    arguments = training_arguments(plan, machine, folder, seed=5, **how)
    model = training_run.build_model(training_run.DEFAULTS | {"dropout": options["dropout"]})
    model.counts = Counts.fit(tokens, 200, 0)
    parts = {"train_dataset": (tokens[:500], True), "eval_dataset": (tokens[500:], False)}
    data = {
        name: DrawnTokens(part, model, multiple_of=BATCH, trained=trained) for name, (part, trained) in parts.items()
    }
    return LanguageModelTrainer(model=model, args=arguments, data_collator=dict, **data, plan=plan, runtime=machine)


def lejepa(machine, folder: Path, options: dict):
    from tests import lejepa_run

    given = lejepa_run.DEFAULTS | short(options) | {"length": LENGTH}
    return lejepa_run.trainer_of(machine, folder, given, **changes_of_plan(machine, options))


def legal(machine, folder: Path, options: dict):
    from tests import legal_run

    given = legal_run.DEFAULTS | short(options) | {"learning_rate": 1e-3}
    return legal_run.trainer_of(machine, folder, given, **changes_of_plan(machine, options))


def graphmer(machine, folder: Path, options: dict):
    from helpers.graphmer.encoder import HGAT
    from tests.graph_run import trainer_of
    from tests.graphmer.batches import library

    sources = folder.parent / "sources"
    if not sources.exists():
        library(sources)
    changes = {"run.max_steps": options["steps"], "model.dropout": options["dropout"]}
    changes |= dict.fromkeys(("run.eval_interval_steps", "run.save_interval_steps"), EVERY)
    trainer = trainer_of(machine, folder, str(sources), changes, **changes_of_plan(machine, options))
    for module in trainer.model.modules():
        if isinstance(module, HGAT) and not options["dropout"]:
            module.dropout = 0.0  # of relations, which no key switches off
    return trainer


def tuning(machine, folder: Path, options: dict):
    from helpers.tuning.training import BATCH, ClassifierTrainer
    from tests.tuning_run import task_of

    task = task_of(machine)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        setattr(task.model.config, name, options["dropout"])
    for module in task.model.modules():
        if hasattr(module, "p"):
            module.p = options["dropout"]
    half = {machine.precision: True} if machine.precision != "fp32" else {}
    cadence = {"logging_steps": 1, "eval_steps": EVERY, "save_steps": EVERY}
    examples = options["steps"] * task.start[BATCH]
    return ClassifierTrainer(task, task.start | half, folder, examples, **cadence)


ROOMS = {each.__name__: each for each in (reservoir, lejepa, legal, graphmer, tuning)}


def disturb(trainer, options: dict) -> None:
    """Kills, infinite gradients and a memory that runs out, as the options say."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from tests.machine.cuda_stand_in import out_of_memory

    left = list(options["exhausted"])

    def run_out(where: str) -> None:
        if left[:1] == [where]:
            left.pop(0)
            out_of_memory()

    def on_gradient(gradient):
        run_out("backward")
        infinite = trainer.state.global_step + 1 in options["overflows"]
        return torch.full_like(gradient, float("inf")) if infinite else gradient

    next(weight for weight in trainer.trained_module().parameters() if weight.requires_grad).register_hook(on_gradient)
    register_optimizer_step_pre_hook(lambda *_: run_out("update"))
    driver.watch(trainer, options["kill_step"])


def main(output_dir: str, options: dict) -> dict:
    if options["card"]:
        from tests.machine.cuda_stand_in import pretend

        pretend(options["card"])
    import torch

    from helpers.machine import runtime

    torch.set_num_threads(1)
    machine = runtime.detect(False, precision=options["precision"])
    Path(output_dir).mkdir(parents=True, exist_ok=True)
    trainer = ROOMS[options["room"]](machine, Path(output_dir), options)
    disturb(trainer, options)
    trainer.train()
    return {
        **trainer.results(),
        "names": sorted(trainer.model.state_dict()),
        "device": str(trainer.args.device),
        "losses": driver.logged(trainer, "loss"),
        "eval_losses": driver.logged(trainer, "eval_loss"),
    }


if __name__ == "__main__":
    driver.serve(main, DEFAULTS)
