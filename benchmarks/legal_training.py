"""Useful tokens a second of legal fine-tuning, as a ratio against the public guide's recipe with stock TRL in the same run.

    python benchmarks/legal_training.py                  # CPU: a tiny random Qwen2
    python benchmarks/legal_training.py --device cuda    # a GPU: Qwen2.5-0.5B's architecture with random weights, bf16

The guide pads every example to 1,000 tokens, takes 4 a step, checkpoints activations and learns the prompt too. Useful tokens are
those of examples, padding left out. On a CPU the ratio of processor time stands beside that of wall time: it does not count what
else the machine does meanwhile. Prints one line of JSON and writes it, with the machine, to docs/results.
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
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

from benchmarks.timing import StepTimes
from helpers import runtime
from helpers.legal.layout import Layout
from helpers.legal.model import sample_tokenizer
from helpers.legal.parameters import LegalParameters
from helpers.legal.records import load_records
from helpers.legal.training import new_trainer
from helpers.legal.training_step import workload
from helpers.plan import Recipe, plan

RECORDS, GUIDES_LENGTH, GUIDES_BATCH, LENGTH = 240, 1000, 4, 1024
STEPS = 8
SIZES = {
    "cpu": {
        "vocab_size": 2000,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "cuda": {  # Qwen2.5-0.5B
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
}


def main() -> None:
    parser = report.argument_parser(__doc__, repetitions=3, each="runs of each side, taking turns")
    arguments = report.parsed(parser, "legal_training_benchmark")
    machine = runtime.detect(False, "bf16" if arguments.device == "cuda" else "fp32")
    described = report.machine(arguments.device, ("torch", "transformers", "trl"))
    tokenizer = sample_tokenizer()
    rows = Layout(tokenizer).encode(load_records("sample", num_records=RECORDS, seed=0).records, LENGTH)[0]
    useful = statistics.mean(len(row["input_ids"]) for row in rows)
    speeds = {"ours": [], "peer": []}
    for _ in range(arguments.repetitions):
        speeds["ours"].append(packed_speed(rows, tokenizer, machine, arguments.device))
        speeds["peer"].append(guides_speed(rows, tokenizer, machine, arguments.device))
    result = {
        "comparison": "legal fine-tuning, all weights",
        "sizes": {**SIZES[arguments.device], "tokens_of_an_example": round(useful)},
        "peer": f"trl.SFTTrainer, examples padded to {GUIDES_LENGTH}, batch {GUIDES_BATCH}, activation checkpointing, loss on all",
        "target_ratio": 3,
        **compared(speeds, "wall"),
        "processor": compared(speeds, "processor") if arguments.device == "cpu" else None,
    }
    print(json.dumps(result))
    report.write(arguments.output, described, repetitions=arguments.repetitions, comparisons=[result])


class Clocks(StepTimes):
    """Seconds of each optimizer step by the clock on the wall and by this process's processors."""

    def __init__(self):
        super().__init__()
        self.processor = StepTimes()

    def on_step_end(self, *arguments, **kwargs):
        super().on_step_end(*arguments, **kwargs)
        self.processor.marks.append(time.process_time())

    def speeds(self, useful_tokens: float) -> dict[str, float]:
        """Useful tokens a second of either clock."""
        return {"wall": useful_tokens / self.median(), "processor": useful_tokens / self.processor.median()}


def compared(speeds: dict[str, list[dict[str, float]]], clock: str) -> dict:
    """Ratio of medians, its range over the turns, and both medians."""
    ours, peer = ([speed[clock] for speed in speeds[side]] for side in ("ours", "peer"))
    ratios = [mine / theirs for mine, theirs in zip(ours, peer, strict=True)]
    return {
        "ratio": round(statistics.median(ours) / statistics.median(peer), 2),
        "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "ours_useful_tokens_per_second": round(statistics.median(ours)),
        "peer_useful_tokens_per_second": round(statistics.median(peer)),
    }


def model(device: str, tokenizer) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(**SIZES[device], tie_word_embeddings=True, max_position_embeddings=2048)
    built = Qwen2ForCausalLM(config)
    built.generation_config.eos_token_id = tokenizer.eos_token_id
    return built


def packed_speed(rows, tokenizer, machine, device: str) -> dict[str, float]:
    """Useful tokens a second as the notebook trains: packed blocks, loss on completions, no checkpointing."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Recipe(
            batch_size=GUIDES_BATCH,
            micro_batch_size=GUIDES_BATCH,
            learning_rate=2e-5,
            max_steps=STEPS,
            sequence_length=LENGTH,
            gradient_checkpointing=False,
        )
        times = Clocks()
        params = LegalParameters(logging_steps=STEPS, eval_steps=STEPS, save_steps=STEPS)
        trained = model(device, tokenizer)
        step = workload(trained, "random Qwen2", LENGTH, "full")
        planned = plan(recipe, step, machine)
        trainer = new_trainer(trained, tokenizer, rows, rows[:8], LENGTH, params, planned, machine, Path(folder))
        trainer.add_callback(times)
        trainer.train(resume_from_checkpoint=False)
        return times.speeds(GUIDES_BATCH * LENGTH * trainer.packing.fill)


def guides_speed(rows, tokenizer, machine, device: str) -> dict[str, float]:
    """Useful tokens a second of the guide's recipe."""
    pad, padded = tokenizer.pad_token_id, []
    for row in rows:
        ids = row["input_ids"][:GUIDES_LENGTH]
        blank = GUIDES_LENGTH - len(ids)
        padded.append(
            {
                "input_ids": ids + [pad] * blank,
                "attention_mask": [1] * len(ids) + [0] * blank,
                "labels": ids + [pad] * blank,
            }
        )
    useful = statistics.mean(sum(row["attention_mask"]) for row in padded)
    with tempfile.TemporaryDirectory() as folder:
        times = Clocks()
        SFTTrainer(
            model(device, tokenizer),
            args=SFTConfig(
                folder,
                per_device_train_batch_size=GUIDES_BATCH,
                max_steps=STEPS,
                learning_rate=2e-5,
                gradient_checkpointing=True,
                loss_type="nll",
                bf16=machine.kind == "cuda",
                use_cpu=machine.kind == "cpu",
                dataset_kwargs={"skip_prepare_dataset": True},
                max_length=GUIDES_LENGTH,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                dataloader_pin_memory=machine.kind == "cuda",
            ),
            train_dataset=Dataset.from_list(padded),
            processing_class=tokenizer,
            callbacks=[times],
        ).train()
        return times.speeds(GUIDES_BATCH * useful)


if __name__ == "__main__":
    main()
