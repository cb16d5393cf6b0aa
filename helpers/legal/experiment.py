"""The steps of a legal fine-tuning run: records to blocks, the model asked before and after, and what is written at the end."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from helpers.machine import ranks
from helpers.machine.runtime import Runtime, detect
from helpers.plan import settings as planner
from helpers.plan.settings import Plan
from helpers.plan.workloads import Workload
from helpers.run import run_folder
from helpers.show import tables
from helpers.train.meter import Meter

from . import harness
from .correctness import Sample, answers, baselines, measure, table
from .export import export as export_model
from .generation import Generated, generate
from .layout import MAX_LENGTH, Layout, choose_max_length
from .model import check_method, load_model
from .packing import count_blocks
from .parameters import LegalParameters, recipe
from .records import Record, Records, RecordSplits, load_records, split_records
from .training import LegalTrainer, workload
from .validation import Report, validate

MEASURED_FILE = "measured.json"  # `LegalTrainer.results` of processes that a notebook started


@dataclass(frozen=True)
class Data:
    records: Records
    report: Report
    splits: RecordSplits


def check(params: LegalParameters, runtime: Runtime) -> None:
    """Raises now what QLoRA (`model.check_method`) or labelled questions (`harness.load_tasks`) would raise after minutes."""
    check_method(params.method, runtime)
    if params.questions:
        harness.load_tasks(params.questions)


def load_data(params: LegalParameters) -> Data:
    """The records of `data_source`; steps out of order are kept where `set_aside_broken` says so, other defects never."""
    records = load_records(params.data_source, num_records=params.num_records, seed=params.seed)
    report = validate(records.records, keeping=() if params.set_aside_broken else {"broken steps"})
    return Data(records, report, split_records(report.kept, params.seed))


@dataclass(frozen=True)
class Encoded:
    """The records that fit into `max_length`, by split."""

    layout: Layout
    splits: RecordSplits
    not_used: list[dict[str, Any]]  # rows beside those of `Report.findings`
    max_length: int
    block_length: int  # tokens of a block; several records share one
    why: str  # both lengths
    blocks: int  # of the training records, packed

    def examples(self, split: str) -> list[dict[str, Any]]:
        """The records of a split as TRL takes them."""
        return [self.layout.example(record) for record in getattr(self.splits, split)]

    def results(self, data: Data) -> dict[str, Any]:
        """The `data` part of results.json."""
        return {
            **data.records.provenance,
            **{f"{name}_examples": len(records) for name, records in vars(self.splits).items()},
            "max_length": self.max_length,
            "block_length": self.block_length,
            "blocks": self.blocks,
            "report": data.report.as_dict(),
            "not_used": self.not_used,
        }


def encode(splits: RecordSplits, tokenizer, params: LegalParameters) -> Encoded:
    """What is used of each split; lengths follow from the training records unless `max_length` is set."""
    layout = Layout(tokenizer, params.layout)
    max_length, why = choose_max_length(layout.lengths(splits.train), wanted=params.max_length)
    chosen = params.max_length or params.packing == "padded"
    block_length = max_length if chosen else max(max_length, MAX_LENGTH)  # into short blocks little fits beside another
    fitted = {name: layout.fit(records, max_length) for name, records in vars(splits).items()}
    used = RecordSplits(**{name: records for name, (records, _) in fitted.items()})
    not_used = [
        {"id": record, "detail": f"{name}, max_length={max_length}", "defect": reason, "set_aside": True}
        for name, (_, out) in fitted.items()
        for record, reason in out
    ]
    blocks = count_blocks(layout.lengths(used.train), block_length, params.packing)
    return Encoded(layout, used, not_used, max_length, block_length, f"{why}; in blocks of {block_length:,}", blocks)


def plan(model, encoded: Encoded, params: LegalParameters, runtime: Runtime) -> tuple[Plan, Workload]:
    """What will run, and why, with the step that it was counted on; activations are recomputed where one block does not fit else."""
    step = workload(model, params.base_model, encoded.block_length, params.method)
    planned = planner.plan(
        recipe(encoded.blocks, encoded.block_length, params.method, runtime.device_count),
        step,
        runtime,
        batch_size=params.batch_size,
        learning_rate=params.learning_rate,
        max_steps=params.max_steps,
        gradient_checkpointing=params.gradient_checkpointing or None,
    )
    return planned, step


def legal_trainer(
    model, encoded: Encoded, params: LegalParameters, plan: Plan, step: Workload, runtime: Runtime, output_dir: Path
) -> LegalTrainer:
    """The trainer of the run, on packed blocks; its FLOPs are those of the counted step, recomputation left out."""
    examples = plan.per_device_batch_size
    counted = planner.memory_of(
        step, runtime, examples, plan.batch_size // plan.device_count, checkpointing=False
    ).count
    return LegalTrainer(
        model,
        encoded.layout.tokenizer,
        encoded.examples("train"),
        encoded.examples("validation"),
        encoded.block_length,
        params,
        plan,
        runtime,
        output_dir,
        flops_per_token=counted.flops / (examples * encoded.block_length),
    )


def train(trainer: LegalTrainer, params: LegalParameters) -> dict[str, Any]:
    """Trains, here or in as many processes as the runtime counts, and returns what was measured (`LegalTrainer.results`).

    Processes that a notebook starts build data and model anew from `params`, as it did, and write the checkpoints into the
    same folder; `trainer` then has the weights of the best evaluation as if it had trained itself.

    Raises RuntimeError where a process fails, with what it said, and as `LegalTrainer.train`.
    """
    count = trainer.runtime.device_count
    if trainer.runtime.kind == "xla" or count == ranks.count():
        trainer.train(resume_from_checkpoint=params.resume)
        return trainer.results()
    from helpers.batch import processes

    trainer.model.to("cpu")  # the first process needs the memory
    if trainer.runtime.kind == "cuda":
        torch.cuda.empty_cache()
    processes.call(f"{__name__}:train_together", {"parameters": json.dumps(params.model_dump())}, count)
    trainer.model.to(trainer.args.device)
    trainer.train(resume_from_checkpoint=True)
    return json.loads((Path(trainer.args.output_dir) / MEASURED_FILE).read_text(encoding="utf-8"))


def train_together(parameters: str) -> None:
    """What each process does that `train` starts: the run of these parameters in JSON, its share of every batch."""
    params = LegalParameters(**json.loads(parameters))
    runtime = detect(False, params.precision)
    model, tokenizer = load_model(params, runtime)
    encoded = encode(load_data(params).splits, tokenizer, params)
    planned, step = plan(model, encoded, params, runtime)
    trainer = legal_trainer(model, encoded, params, planned, step, runtime, Path(params.output_dir))
    trainer.train(resume_from_checkpoint=params.resume)
    if ranks.is_main():
        run_folder.write_json(Path(params.output_dir) / MEASURED_FILE, trainer.results())


def references(encoded: Encoded, params: LegalParameters) -> dict[str, dict[str, Any]]:
    """`correctness.baselines` on the questions that `examine` asks, by the split they are of."""
    return {name: baselines(encoded.splits.train, asked) for name, asked in _asked(encoded, params).items()}


def _asked(encoded: Encoded, params: LegalParameters) -> dict[str, tuple[Record, ...]]:
    found = {name: getattr(encoded.splits, name)[: params.test_records] for name in ("test", "areas")}
    return {name: records for name, records in found.items() if records}


def examine(
    trainer: LegalTrainer, encoded: Encoded, params: LegalParameters
) -> tuple[dict[str, dict[str, Any]], list[Sample]]:
    """What `correctness.measure` finds on the first `test_records` test records, and with the sample as many of other areas
    of law, by split, with the loss on the records' own completions; and the texts for the test records.

    What the harness finds on labelled questions, where there are any, is with `test`.
    """
    metrics, texts, layout = {}, {}, encoded.layout
    for name, records in _asked(encoded, params).items():
        with autocast(trainer.runtime):
            texts[name] = answers(trainer.model, layout, records, max_new_tokens=params.max_new_tokens)
        loss = trainer.completion_loss([layout.example(record) for record in records])
        metrics[name] = {"completion": loss, **measure(texts[name])}
    if params.questions:
        with autocast(trainer.runtime):
            metrics["test"]["questions"] = harness.evaluate(trainer.model, layout.tokenizer, params.questions)
    return metrics, texts["test"]


def autocast(runtime: Runtime) -> contextlib.AbstractContextManager:
    """The precision of the run for what is not training."""
    half = torch.bfloat16 if runtime.precision == "bf16" else torch.float16
    return torch.autocast(runtime.kind, dtype=half, enabled=runtime.precision != "fp32")


def ask(
    trainer: LegalTrainer, encoded: Encoded, question: str, params: LegalParameters, *, stream: bool = False
) -> Generated:
    """The model's answer to one question, the likeliest token at every step; printed as it is written where it streams."""
    from transformers import TextStreamer

    shown = TextStreamer(encoded.layout.tokenizer, skip_prompt=True, skip_special_tokens=True)
    on_xla = trainer.runtime.kind == "xla"
    with autocast(trainer.runtime):
        (answer,) = generate(
            trainer.model,
            encoded.layout,
            [question],
            max_new_tokens=params.max_new_tokens,
            streamer=shown if stream and not on_xla else None,
        )
    if stream and on_xla:
        print(answer)
    return answer


def export(
    trainer: LegalTrainer, encoded: Encoded, data: Data, params: LegalParameters, folder: Path, *found
) -> list[Path]:
    """Writes the model into `model`, and a card with `correctness.table` of the test: the files, relative to `folder`.

    found: references, before, after.
    """
    card = {
        "Data": [data.records.provenance],
        "Records": data.report.rows(examples=0),
        "Plan": trainer.plan.rows(),
        "Results": table(*(each["test"] for each in found)),
    }
    written = export_model(trainer.model, encoded.layout, folder / "model", base_model=params.base_model, card=card)
    return sorted(path.relative_to(folder) for path in written.rglob("*") if path.is_file())


def cost(measured: dict[str, Any]) -> list[dict[str, Any]]:
    """What the run took, for `tables.show`: the meter's rows, how much was no padding, and a thousand steps more."""
    train = measured["train"]
    training = train["seconds"] - train["compile_seconds"] - train["evaluate_and_save_seconds"]
    more = 1000 * training / max(1, train["steps"])  # both are of all sessions of a run
    return [
        *Meter.rows(train, measured.get("xla")),
        {"measured": "packing efficiency", "": f"{train['fill']:.1%}"},
        {"measured": "useful tokens a second", "": train["useful_tokens_per_second"]},
        {"measured": "time of 1,000 more steps", "": tables.seconds(more)},
    ]
