"""What each setting of LeJEPA training saves in time and memory: one change at a time, as ratios against the start.

    python benchmarks/embedding_settings.py                  # CPU
    python benchmarks/embedding_settings.py --device cuda    # a GPU

The start is the notebook's loss on MiniLM's architecture with random weights, which change nothing about the work: 16 texts
of 128 tokens in two views, nothing frozen, fp32. Memory is what a step keeps for backward. Prints one line of JSON a setting
and writes them, with the machine, to docs/results.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
import torch
from datasets import Dataset
from sentence_transformers.sentence_transformer.modules import Dense

from benchmarks.embedding_training import SIZES, backbone
from benchmarks.timing import StepTimes
from helpers import runtime
from helpers.lejepa.beir import from_pairs
from helpers.lejepa.loss import LeJEPALoss, workload
from helpers.lejepa.model import freeze
from helpers.lejepa.parameters import EmbeddingParameters
from helpers.lejepa.sample import docstrings, documents
from helpers.lejepa.sigreg import SIGReg
from helpers.lejepa.training import new_trainer
from helpers.plan import Recipe, plan

STEPS = 5


@dataclass(frozen=True)
class Setting:
    batch_size: int = 16
    train_length: int = 128
    freeze_layers: int = 0
    gradient_checkpointing: bool = False
    precision: str = "fp32"


CHANGES = {
    "start": {},
    "batch_size=8": {"batch_size": 8},
    "train_length=64": {"train_length": 64},
    "freeze_layers=3": {"freeze_layers": 3},
    "freeze_layers=-1 (head only)": {"freeze_layers": -1},
    "gradient checkpointing (the plan's)": {"gradient_checkpointing": True},
    "precision=bf16": {"precision": "bf16"},
}


def main() -> None:
    parser = report.argument_parser(__doc__, repetitions=3, each="turns through all settings")
    arguments = report.parsed(parser, "embedding_settings")
    machine = report.machine(arguments.device, ("torch", "transformers", "sentence-transformers"))
    measured = {name: [] for name in CHANGES}
    for _ in range(arguments.repetitions):
        for name, change in CHANGES.items():
            measured[name].append(measure(replace(Setting(), **change), arguments.device))
    start = measured["start"]
    results = []
    for name, runs in measured.items():
        times = [one[0] / mine[0] for one, mine in zip(start, runs, strict=True)]
        examples = replace(Setting(), **CHANGES[name]).batch_size / Setting.batch_size
        results.append(
            {
                "setting": name,
                "examples_per_second_ratio": round(statistics.median(times) * examples, 3),
                "ratio_range": [round(min(times) * examples, 3), round(max(times) * examples, 3)],
                "kept_for_backward_bytes": runs[0][1],
                "memory_ratio": round(runs[0][1] / start[0][1], 3),
            }
        )
        print(json.dumps(results[-1]), flush=True)
    report.write(arguments.output, machine, repetitions=arguments.repetitions, backbone=SIZES, settings=results)


def measure(setting: Setting, device: str) -> tuple[float, int]:
    """Median seconds of a step, and the bytes of tensors that its forward pass keeps for backward, weights left out."""
    machine = runtime.detect(False, setting.precision)
    texts = [text for text in documents(docstrings()) if len(text.split()) >= 128]
    rows = Dataset.from_dict({"anchor": texts, "positive": texts[::-1]})
    with tempfile.TemporaryDirectory() as folder:
        model = backbone(rows, folder, Dense(384, 384, activation_function=torch.nn.Identity()))
        model[0].max_seq_length = 128
        if setting.freeze_layers:
            freeze(model, setting.freeze_layers)
        loss = LeJEPALoss(
            model,
            SIGReg(t_max=3.0, n_points=17, num_slices=256),
            sigreg_weight=0.02,
            contrastive_weight=1.0,
        )
        recipe = Recipe(
            batch_size=setting.batch_size, learning_rate=2e-6, max_steps=STEPS, sequence_length=setting.train_length
        )
        step = workload(loss, "MiniLM", setting.train_length, views=2)
        planned = plan(recipe, step, machine, gradient_checkpointing=setting.gradient_checkpointing)
        times, kept = StepTimes(), []
        every = {"logging_steps": STEPS, "eval_steps": STEPS, "save_steps": STEPS, "report_to": "none"}
        params = EmbeddingParameters.defaults().model_copy(update={"train_length": setting.train_length, **every})
        trainer = new_trainer(
            model,
            loss,
            rows,
            from_pairs(zip(rows["anchor"][:2], rows["positive"][:2], strict=True), "validation"),
            params,
            planned,
            machine,
            Path(folder) / "run",
        )
        trainer.add_callback(times)
        weights = {weight.untyped_storage().data_ptr() for weight in trainer.trained_module().parameters()}
        compute_loss = trainer.compute_loss

        def counted(*args, **kwargs):
            seen: dict[int, int] = {}

            def note(tensor: torch.Tensor) -> torch.Tensor:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in weights:
                    seen[storage.data_ptr()] = storage.nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                found = compute_loss(*args, **kwargs)
            kept.append(sum(seen.values()))
            return found

        trainer.compute_loss = counted
        trainer.train(resume_from_checkpoint=False)
        return times.median(), int(statistics.median(kept))


if __name__ == "__main__":
    main()
