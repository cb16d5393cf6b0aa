"""Examples a second of LeJEPA training, as a ratio against stock contrastive training in the same run.

    python benchmarks/embedding_training.py                  # CPU
    python benchmarks/embedding_training.py --device cuda    # a GPU, bf16

MiniLM's architecture with random weights, which change nothing about the work, on pairs of 64 tokens. Prints one line of JSON
and writes it, with the machine, to docs/results.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer
from transformers import BertConfig, BertModel

from benchmarks.timing import StepTimes
from helpers import runtime
from helpers.lejepa.beir import from_pairs
from helpers.lejepa.loss import LeJEPALoss, workload
from helpers.lejepa.model import _train_tokenizer
from helpers.lejepa.parameters import EmbeddingParameters
from helpers.lejepa.sample import docstrings, documents
from helpers.lejepa.sigreg import SIGReg
from helpers.lejepa.training import new_trainer
from helpers.plan import Recipe, plan

TEXTS, BATCH, LENGTH, STEPS = 2048, 32, 64, 12
SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}


def main() -> None:
    parser = report.argument_parser(__doc__, repetitions=3, each="runs of each side, taking turns")
    arguments = report.parsed(parser, "embedding_training_benchmark")
    machine = runtime.detect(False, "bf16" if arguments.device == "cuda" else "fp32")
    described = report.machine(arguments.device, ("torch", "transformers", "sentence-transformers"))
    texts = [text for text in documents(docstrings()) if len(text.split()) >= LENGTH][:TEXTS]
    rows = Dataset.from_dict({"anchor": texts, "positive": texts[::-1]})
    seconds = {"ours": [], "peer": []}
    for _ in range(arguments.repetitions):
        seconds["ours"].append(lejepa_seconds(rows, machine))
        seconds["peer"].append(stock_seconds(rows, machine))
    ratios = [theirs / mine for mine, theirs in zip(seconds["ours"], seconds["peer"], strict=True)]
    sigreg = sigreg_seconds(machine)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = {
        "comparison": "LeJEPA training step",
        "sizes": {"B": BATCH, "T": LENGTH, "views": 2, **SIZES},
        "peer": "SentenceTransformerTrainer with MultipleNegativesRankingLoss, same backbone, batch and length",
        "target_ratio": 0.95,
        "ratio": round(medians["peer"] / medians["ours"], 3),
        "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
        **{f"{name}_examples_per_second": round(BATCH / value, 1) for name, value in medians.items()},
        **{f"{name}_step_seconds": [round(value, 4) for value in sorted(values)] for name, values in seconds.items()},
        "sigreg_share_of_step": round(sigreg / medians["ours"], 4),
        "sigreg_share_target": 0.05,
    }
    print(json.dumps(result))
    report.write(arguments.output, described, repetitions=arguments.repetitions, comparisons=[result])


def backbone(rows: Dataset, folder: str, *head) -> SentenceTransformer:
    torch.manual_seed(0)
    tokenizer = _train_tokenizer(rows["anchor"])
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **SIZES)
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    transformer = Transformer(folder)
    transformer.max_seq_length = LENGTH
    return SentenceTransformer(modules=[transformer, Pooling(config.hidden_size), *head])


def lejepa_seconds(rows: Dataset, machine) -> float:
    """Median seconds of a step with the notebook's loss: SIGReg and the contrastive term."""
    with tempfile.TemporaryDirectory() as folder:
        model = backbone(rows, folder, Dense(384, 384, activation_function=torch.nn.Identity()))
        loss = LeJEPALoss(
            model,
            SIGReg(t_max=3.0, n_points=17, num_slices=256),
            sigreg_weight=0.05,
            contrastive_weight=1.0,
        )
        recipe = Recipe(batch_size=BATCH, learning_rate=2e-5, max_steps=STEPS, sequence_length=LENGTH)
        times = StepTimes()
        every = {"logging_steps": STEPS, "eval_steps": STEPS, "save_steps": STEPS, "report_to": "none"}
        params = EmbeddingParameters.defaults().model_copy(update={"train_length": LENGTH, **every})
        trainer = new_trainer(
            model,
            loss,
            rows,
            from_pairs(zip(rows["anchor"][:2], rows["positive"][:2], strict=True), "validation"),
            params,
            plan(recipe, workload(loss, "MiniLM", LENGTH, views=2), machine),
            machine,
            Path(folder) / "run",
        )
        trainer.add_callback(times)
        trainer.train(resume_from_checkpoint=False)
        return times.median()


def stock_seconds(rows: Dataset, machine) -> float:
    """Median seconds of a step of the stock trainer, its arguments at their defaults but for size and precision."""
    with tempfile.TemporaryDirectory() as folder:
        model = backbone(rows, folder)
        times = StepTimes()
        SentenceTransformerTrainer(
            model,
            args=SentenceTransformerTrainingArguments(
                f"{folder}/run",
                per_device_train_batch_size=BATCH,
                max_steps=STEPS,
                bf16=machine.kind == "cuda",
                use_cpu=machine.kind == "cpu",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                dataloader_pin_memory=machine.kind == "cuda",
            ),
            train_dataset=rows,
            loss=MultipleNegativesRankingLoss(model),
            callbacks=[times],
        ).train()
        return times.median()


def sigreg_seconds(machine) -> float:
    """Median seconds of SIGReg alone, forward and backward, at the sizes of that step."""
    device = torch.device(machine.kind)
    sigreg = SIGReg(t_max=3.0, n_points=17, num_slices=256).to(device)
    views = torch.randn(2, BATCH, 384, device=device, requires_grad=True)
    marks = []
    for step in range(21):
        begin = time.perf_counter()
        sigreg(views, step).backward()
        if machine.kind == "cuda":
            torch.cuda.synchronize()
        marks.append(time.perf_counter() - begin)
    return statistics.median(marks[1:])


if __name__ == "__main__":
    main()
