"""Useful tokens a second of legal fine-tuning as the notebook trains, as ratios against three ways with stock TRL, in turns.

    python benchmarks/legal_training.py                  # CPU: a tiny random Qwen2
    python benchmarks/legal_training.py --device cuda    # a GPU: Qwen2.5-0.5B's architecture with random weights, bf16

- `packing`: TRL's own packing, flattened batches and fused loss on completions, with transformers' attention;
- `dynamic padding`: examples padded to the longest of their batch, fused loss on completions;
- `guide`: the public guide's recipe, examples padded to 1,000 tokens, 4 a step, activations recomputed, loss on the prompt too.

Useful tokens are those of examples, padding left out. On a CPU processor time counts, because it leaves out what else the machine
does. Prints one line of JSON and writes it, with the machine, to docs/results.
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
from helpers.legal.training import LegalTrainer, workload
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


PEERS = {
    "packing": {"packing": True, "max_length": LENGTH},
    "dynamic padding": {"max_length": LENGTH},
    "guide": {"max_length": GUIDES_LENGTH, "completion_only_loss": False, "gradient_checkpointing": True},
}


def main() -> None:
    parser = report.argument_parser(__doc__, repetitions=3, each="runs of each side, taking turns")
    arguments = report.parsed(parser, "legal_training_benchmark")
    machine = runtime.detect(False, "bf16" if arguments.device == "cuda" else "fp32")
    described = report.machine(arguments.device, ("torch", "transformers", "trl"))
    tokenizer = sample_tokenizer()
    layout, records = Layout(tokenizer), load_records("sample", num_records=RECORDS, seed=0).records
    fitted, _ = layout.fit(records, GUIDES_LENGTH)
    examples = [layout.example(record) for record in fitted]
    useful = statistics.mean(layout.lengths(fitted))
    clock = "processor" if arguments.device == "cpu" else "wall"
    speeds: dict[str, list[float]] = {name: [] for name in ("notebook", *PEERS)}
    for _ in range(arguments.repetitions):
        speeds["notebook"].append(notebooks_speed(examples, tokenizer, machine, arguments.device)[clock])
        for name, fields in PEERS.items():
            speeds[name].append(stock_speed(examples, useful, tokenizer, machine, arguments.device, fields)[clock])
    middle = {name: statistics.median(found) for name, found in speeds.items()}
    result = {
        "comparison": "legal fine-tuning, all weights",
        "sizes": {**SIZES[arguments.device], "tokens_of_an_example": round(useful), "steps": STEPS},
        "clock": clock,
        "useful_tokens_per_second": {name: round(speed) for name, speed in middle.items()},
        "spread": {name: round((max(found) - min(found)) / middle[name], 3) for name, found in speeds.items()},
        "ratio": {name: round(middle["notebook"] / middle[name], 2) for name in PEERS},
        "ratio_range": {name: ranges(speeds["notebook"], speeds[name]) for name in PEERS},
    }
    print(json.dumps(result))
    report.write(arguments.output, described, repetitions=arguments.repetitions, comparisons=[result])


def ranges(ours: list[float], theirs: list[float]) -> list[float]:
    """Least and largest ratio of a turn."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return [round(min(ratios), 2), round(max(ratios), 2)]


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


def model(device: str, tokenizer) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(**SIZES[device], tie_word_embeddings=True, max_position_embeddings=2048)
    built = Qwen2ForCausalLM(config)
    built.generation_config.eos_token_id = tokenizer.eos_token_id
    return built


def notebooks_speed(examples, tokenizer, machine, device: str) -> dict[str, float]:
    """Useful tokens a second as the notebook trains."""
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
        trainer = LegalTrainer(
            trained, tokenizer, examples, examples[:8], LENGTH, params, planned, machine, Path(folder)
        )
        trainer.add_callback(times)
        trainer.train(resume_from_checkpoint=False)
        return times.speeds(GUIDES_BATCH * LENGTH * trainer.results()["train"]["fill"])


def stock_speed(examples, useful: float, tokenizer, machine, device: str, fields: dict) -> dict[str, float]:
    """Useful tokens a second of stock TRL with these fields of SFTConfig."""
    times = Clocks()
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model(device, tokenizer),
            args=SFTConfig(
                folder,
                per_device_train_batch_size=GUIDES_BATCH,
                max_steps=STEPS,
                learning_rate=2e-5,
                bf16=machine.kind == "cuda",
                use_cpu=machine.kind == "cpu",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                dataloader_pin_memory=machine.kind == "cuda",
                **{"gradient_checkpointing": False} | fields,
            ),
            train_dataset=Dataset.from_list(examples),
            processing_class=tokenizer,
            callbacks=[times],
        )
        if not fields.get("completion_only_loss", True):
            trainer.data_collator.pad_to_multiple_of = GUIDES_LENGTH
        rows = trainer.train_dataset
        if fields.get("packing"):
            useful = sum(map(len, rows["input_ids"])) / len(rows)
        trainer.train()
    return times.speeds(GUIDES_BATCH * useful)


if __name__ == "__main__":
    main()
