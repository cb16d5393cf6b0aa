"""Small but real fine-tuning runs in a process of their own, for the tests that kill, resume and compare runs.

python -m tests.legal_run OUTPUT_DIR '{"kind": "xla", "steps": 8, ...}' [OUTPUT_DIR '{...}' ...]  prints one line of JSON
a run. All runs of a process are of one kind.
"""

from pathlib import Path

from tests import driver

DEFAULTS = driver.DEFAULTS | {
    "method": "lora",  # "qlora" or "full"
    "rank": 4,  # of the adapter
    "dropout": 0.05,
    "checkpointing": False,
    "steps": 8,
    "batch_size": 8,  # blocks of a micro-batch
    "accumulation": 1,
    "logging_steps": 1,
    "save_steps": 4,
    "learning_rate": 1e-2,
    "warmup_fraction": 0.05,
    "alphabet": [3, 60],  # tokens of the training rows
    "eval_alphabet": [3, 60],
}
LENGTH = 64


def rows(count: int, length: int, seed: int, alphabet: tuple[int, int] = (3, 60)) -> list[dict[str, list[int]]]:
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

    fields = {"base_model": "sample", "method": options["method"], "lora_rank": options["rank"], "seed": 1}
    params = LegalParameters(**fields, save_steps=options["save_steps"])
    model, tokenizer = load_model(params, machine, dropout=options["dropout"])
    settings = {name: options[name] for name in ("batch_size", "accumulation", "steps", "learning_rate")}
    settings |= {
        "warmup_steps": round(options["steps"] * options["warmup_fraction"]),
        "gradient_checkpointing": options["checkpointing"],
    }
    if options["method"] == "qlora":
        settings["optimizer"] = "paged_adamw_8bit"
    planned = plan_by_hand(machine, length=LENGTH, **settings | changes)
    logged = params.logged() | {"seed": 5, "logging_steps": options["logging_steps"]}
    arguments = sft_config(planned, machine, folder, length=LENGTH, **logged)
    taught = Dataset.from_list(rows(200, LENGTH, seed=0, alphabet=options["alphabet"]))
    evaluated = Dataset.from_list(rows(40, LENGTH, seed=1, alphabet=options["eval_alphabet"]))
    return LegalTrainer(model, arguments, taught, evaluated, tokenizer, plan=planned, runtime=machine)


def main(output_dir: str, options: dict) -> dict:
    machine = driver.detect(options)
    from datasets import Dataset

    trainer = trainer_of(machine, Path(output_dir), options)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    watched = driver.watch(trainer, options)
    held_out = Dataset.from_list(rows(13, LENGTH, seed=2))
    trainer.train(resume_from_checkpoint=True)
    moved = {
        name: float((p.detach().cpu() - before[name]).abs().max())
        for name, p in trainer.model.named_parameters()
        if p.requires_grad
    }
    return {
        **trainer.results(),
        "transfers": watched.transfers,
        "late": watched.late,
        "losses": driver.logged(trainer, "loss"),
        "grad_norms": driver.logged(trainer, "grad_norm"),
        "eval_losses": driver.logged(trainer, "eval_loss"),
        "best_step": trainer.state.best_global_step,
        "moved": moved,
        "dtypes": sorted({str(p.dtype) for p in trainer.model.parameters()}),
        "loss_by_hand": loss_by_hand(trainer, rows(40, LENGTH, seed=1, alphabet=options["eval_alphabet"])),
        "held_out_loss": trainer.completion_loss(held_out)["loss"],
        "held_out_loss_by_hand": loss_by_hand(trainer, held_out),
    }


def loss_by_hand(trainer, examples) -> float:
    """Mean loss over all labels of examples, each alone in a plain forward pass of a CPU copy."""
    import torch

    from helpers.machine.engine import cpu_copy

    in_four_bits = getattr(trainer.model, "is_loaded_in_4bit", False)  # and so cannot be copied
    model = (trainer.model if in_four_bits else cpu_copy(trainer.model)).eval()
    total = labels = 0
    for row in examples:
        ids, wanted = torch.tensor([row["input_ids"]]), torch.tensor([row["labels"]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[:, :-1].float()
        total += torch.nn.functional.cross_entropy(logits[0], wanted[0, 1:], reduction="sum").item()
        labels += int((wanted[0, 1:] != -100).sum())
    return total / labels


if __name__ == "__main__":
    driver.serve(main, DEFAULTS)
