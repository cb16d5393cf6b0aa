"""Small but real fine-tuning runs in a process of their own, for the tests that kill, resume and compare runs.

python -m tests.legal_run OUTPUT_DIR '{"kind": "xla", "steps": 8, ...}' [OUTPUT_DIR '{...}' ...]  prints one line of JSON
a run. All runs of a process are of one kind.
"""

from collections.abc import Sequence
from pathlib import Path

from tests import driver

DEFAULTS = driver.DEFAULTS | {
    "method": "lora",  # or "full"
    "dropout": 0.05,
    "checkpointing": False,
    "steps": 8,
    "batch_size": 8,  # blocks of a micro-batch
    "accumulation": 1,
    "logging_steps": 1,
    "save_steps": 4,
    "learning_rate": 1e-2,
    "alphabets": [[3, 60], [3, 60]],  # tokens of the training rows, and of the others
}
LENGTH = 64


def rows(count: int, length: int, seed: int, alphabet: Sequence[int] = (3, 60)) -> list[dict[str, list[int]]]:
    """Examples with something to learn: each repeats three tokens of the alphabet, and its first third is the prompt."""
    import numpy as np

    generator = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        size = int(generator.integers(5, length // 2))
        ids = np.resize(generator.integers(*alphabet, 3), size).tolist()
        found.append({"input_ids": ids, "labels": [-100] * (size // 3) + ids[size // 3 :]})
    return found


def trainer_of(machine, folder: Path, options: dict, **changes):
    """The trainer of a run with these options; changes: of its plan."""
    from datasets import Dataset

    from helpers.legal.model import load_model
    from helpers.legal.parameters import LegalParameters
    from helpers.legal.training import LegalTrainer, sft_config
    from tests.workloads import plan_by_hand

    fields = {name: options[name] for name in ("method", "save_steps")}
    params = LegalParameters(base_model="sample", lora_rank=4, seed=1, **fields)
    model, tokenizer = load_model(params, machine, dropout=options["dropout"])
    settings = {name: options[name] for name in ("batch_size", "accumulation", "steps", "learning_rate")}
    settings["gradient_checkpointing"] = options["checkpointing"]
    planned = plan_by_hand(machine, length=LENGTH, **settings | changes)
    logged = params.logged() | {"seed": 5, "logging_steps": options["logging_steps"]}
    arguments = sft_config(planned, machine, folder, length=LENGTH, **logged)
    taught, evaluated = options["alphabets"]
    train_dataset = Dataset.from_list(rows(200, LENGTH, seed=0, alphabet=taught))
    eval_dataset = Dataset.from_list(rows(40, LENGTH, seed=1, alphabet=evaluated))
    return LegalTrainer(model, arguments, train_dataset, eval_dataset, tokenizer, plan=planned, runtime=machine)


def main(output_dir: str, options: dict) -> dict:
    machine = driver.detect(options)
    from datasets import Dataset

    trainer = trainer_of(machine, Path(output_dir), options)
    watched = driver.watch(trainer, options)
    held_out = Dataset.from_list(rows(13, LENGTH, seed=2))
    trainer.train(resume_from_checkpoint=True)
    return {
        **trainer.results(),
        "transfers": watched.transfers,
        "late": watched.late,
        "losses": driver.logged(trainer, "loss"),
        "grad_norms": driver.logged(trainer, "grad_norm"),
        "eval_losses": driver.logged(trainer, "eval_loss"),
        "best_step": trainer.state.best_global_step,
        "dtypes": sorted({str(p.dtype) for p in trainer.model.parameters()}),
        "loss_by_hand": loss_by_hand(trainer, rows(40, LENGTH, seed=1, alphabet=options["alphabets"][1])),
        "held_out_loss": trainer.completion_loss(held_out)["loss"],
        "held_out_loss_by_hand": loss_by_hand(trainer, held_out),
    }


def loss_by_hand(trainer, examples) -> float:
    """Mean loss over all labels of examples, each alone in a plain forward pass of a CPU copy."""
    import torch

    from helpers.machine.engine import cpu_copy

    model = cpu_copy(trainer.model).eval()
    losses = []
    for row in examples:
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1].float()
        losses.append(torch.nn.functional.cross_entropy(logits, labels[1:], reduction="none")[labels[1:] != -100])
    return torch.cat(losses).mean().item()


if __name__ == "__main__":
    driver.serve(main, DEFAULTS)
