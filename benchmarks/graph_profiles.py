"""Each profile of GraphMER-SE for 50 optimizer steps at its real size, on the sample.

    python benchmarks/graph_profiles.py          # about half an hour on one core

The sequences are those that the run would see, its curriculum in shares of these steps. Counted are the roots and leaves that are no
padding, and the masked leaves: each is a question about a link. Every shape that a micro-batch has is traced at its real size, forward,
backward and optimizer, by torch's FakeTensorMode, which knows shapes and no numbers; the products are counted there, in fp32 and without
those that activation checkpointing computes again. The published
recipe, in the size of `t4`, is what the number of questions for as many products is compared with. That the planner plans exactly
these jobs is what tests/test_graph_any_repository.py says.

Then the model of these profiles learns on the CPU, through the same lengths, by the trainer of the notebook with few sequences a step: its
loss is written.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from helpers import runtime
from helpers.graphmer import experiment
from helpers.graphmer.configuration import PROFILES, Configuration, override, read_configuration
from helpers.graphmer.experiment import Corpus
from helpers.graphmer.text.masking import IGNORED
from helpers.graphmer.training import CurriculumChains, LeafyChainCollator, new_trainer
from helpers.planning.machines import machine, runtime_of

ROOT = Path(__file__).resolve().parents[1]
STEPS = 50
MACHINES = {"cpu": "CPU", "t4": "T4", "rtx3050": "RTX 3050", "a100": "A100 40GB", "tpu_v5e_8": "v5e-8"}
PUBLISHED = "published recipe"
RECIPE = ("objectives", "encoding", "regularizers")  # sections; their defaults are those of the published document


def configured(name: str) -> Configuration:
    written = read_configuration("t4" if name == PUBLISHED else name)
    if name == PUBLISHED:
        written = written.model_copy(update={section: getattr(Configuration(), section) for section in RECIPE})
    return override(written, {"run.max_steps": STEPS})


def tried(configuration: Configuration, corpus: Corpus, devices: int) -> dict:
    """What the sequences of all steps hold, over all devices, and the products of their micro-batches.

    Each shape that they have is traced once: forward, backward and optimizer.
    """
    begins, lengths = zip(*configuration.stages(), strict=True)
    roots = [configuration.shape(length)[0] for length in lengths]
    a_step, micro = configuration.batch_size(devices), configuration.training_data.micro_batch_size
    data = CurriculumChains(corpus.train, begins, roots, steps=STEPS, examples_per_step=a_step)
    collate = LeafyChainCollator(corpus.train)
    total: Counter = Counter()
    traced: dict[tuple, Counter] = {}  # shapes of every field -> micro-batches that have them, and products of one
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        model = experiment.new_model(configuration, corpus).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=configuration.optimizer.lr)
    for first in range(0, STEPS * a_step, micro):
        batch = collate([data[first + place] for place in range(micro)])
        total += held(batch)
        shapes = tuple((name, tuple(value.shape)) for name, value in batch.items())
        if shapes not in traced:
            inputs = {name: fake.from_tensor(value) for name, value in batch.items()}
            with fake, FlopCounterMode(display=False) as counter:
                model(**inputs).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            traced[shapes] = Counter(flops=counter.get_total_flops())
        traced[shapes]["batches"] += 1
    return {
        "weights": sum(each.numel() for each in model.parameters()),
        "sequences_a_step": a_step,
        "lengths": lengths,
        "roots_filled": total["roots"] / total["root slots"],
        "leaves_filled": total["leaves"] / total["leaf slots"],
        "questions": total["questions"],
        "questions_a_sequence": total["questions"] / (STEPS * a_step),
        "flops": sum(each["flops"] * each["batches"] for each in traced.values()),
        "traced": [
            {"root_ids": dict(shapes)["root_ids"], "leaf_ids": dict(shapes)["leaf_ids"], **each}
            for shapes, each in traced.items()
        ],
    }


def held(batch: dict[str, torch.Tensor]) -> Counter:
    """Places that a batch has, those that are no padding, and leaves that are masked."""
    return Counter(
        {
            "roots": int((batch["root_segments"] > 0).sum()),
            "root slots": batch["root_segments"].numel(),
            "leaves": int((batch["relation_ids"] > 0).sum()),
            "leaf slots": batch["relation_ids"].numel(),
            "questions": int((batch["mnm_labels"] != IGNORED).any(-1).sum()),
        }
    )


def learned(corpus: Corpus, configuration: Configuration, sequences: int, folder: Path) -> dict:
    """Loss of each step of the model on the CPU, by the notebook's trainer."""
    changes = {
        "run.mixed_precision": "fp32",
        "run.gradient_accumulation_steps": 1,
        "run.log_interval": 1,
        "hardware.device": "cpu",
        "hardware.num_workers": 0,
        "training_data.micro_batch_size": sequences,
        "evaluation.micro_batch_size": sequences,
    }
    small, here = override(configuration, changes), runtime.detect(False, "fp32")
    model = experiment.new_model(small, corpus)
    plan = experiment.make_plan(small, model, corpus, here)
    few = torch.utils.data.Subset(corpus.validation, range(sequences))
    trainer = new_trainer(model, corpus.train, few, small, plan, here, folder)
    trainer.train(resume_from_checkpoint=True)
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return {"sequences_a_step": sequences, "losses": losses}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=2, help="of a step on the CPU")
    parser.add_argument("--folder", type=Path, default=Path("outputs/graph_profiles"))
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/graphmer_profiles_cpu.json")
    given = parser.parse_args()
    about, rows, corpora = report.machine("cpu", ("torch", "transformers")), {}, {}
    trained: dict = {}

    def write() -> None:
        report.write(given.output, about, steps=STEPS, profiles=rows, trained=trained)

    for name in (*PROFILES, PUBLISHED):
        configuration = configured(name)
        key = configuration.encoding.model_dump_json() + str(configuration.stages())
        if key not in corpora:  # profiles of one recipe share what is encoded
            corpora[key] = experiment.load_corpus("sample", configuration)
        corpus = experiment.with_options(corpora[key], configuration)
        devices = 1 if name == PUBLISHED else runtime_of(machine(MACHINES[name])).device_count
        rows[name] = tried(configuration, corpus, devices)
        print(name, rows[name], flush=True)
        write()
    name = "t4"
    configuration = configured(name)
    corpus = corpora[configuration.encoding.model_dump_json() + str(configuration.stages())]
    trained |= {"profile": name, **learned(corpus, configuration, given.sequences, given.folder)}
    write()


if __name__ == "__main__":
    main()
