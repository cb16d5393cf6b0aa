"""The steps of a legal fine-tuning run: records to blocks, the model asked before and after, and what is written at the end."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from helpers import plan as planner
from helpers.plan import Plan
from helpers.planning import architectures, model_sizes
from helpers.planning import forecast as forecasts
from helpers.planning.forecast import Forecast
from helpers.planning.jobs import Job
from helpers.runtime import Runtime

from . import model as models
from .evaluation import Sample, evaluate_answers, loss_and_perplexity
from .generation import generate
from .layout import MAX_LENGTH, Layout, Truncation, choose_max_length
from .multiple_choice import Questions, accuracy, load_questions, score_labels
from .packing import pack
from .parameters import LegalParameters, model_size, recipe
from .records import Record, RecordSplits, load_records, split_records
from .training import LegalTrainer, new_trainer
from .validation import SET_ASIDE, Report, validate

EVALUATION_BATCH = 8


@dataclass(frozen=True)
class Data:
    """Checked records, and those that are kept in three splits."""

    source: str
    report: Report
    splits: RecordSplits


def load_data(params: LegalParameters) -> Data:
    """The records of `data_source`; broken steps are kept where `set_aside_broken` says so, other defects never."""
    records = load_records(params.data_source, num_records=params.num_records, seed=params.seed)
    excluding = set(SET_ASIDE) - (set() if params.set_aside_broken else {"broken steps"})
    report = validate(records.records, excluding=excluding)
    return Data(records.source, report, split_records(report.kept, params.seed))


def load_model(params: LegalParameters, runtime: Runtime):
    """Model and tokeniser of the run, on the CPU."""
    return models.load_model(
        params.base_model,
        runtime=runtime,
        method=params.method,
        layout=params.layout,
        rank=params.lora_rank,
        alpha=params.lora_alpha,
        seed=params.seed,
    )


@dataclass(frozen=True)
class Encoded:
    """The splits as token rows no longer than `max_length`."""

    layout: Layout
    max_length: int
    block_length: int  # tokens of a block; several rows share one
    why: str  # both lengths
    train: list[dict[str, list[int]]]
    validation: list[dict[str, list[int]]]
    test: list[dict[str, list[int]]]
    truncation: Truncation  # of the training records
    blocks: int  # of the training rows, packed


def encode(splits: RecordSplits, tokenizer, params: LegalParameters) -> Encoded:
    """Rows with labels on the completions only; lengths follow from the training records unless `max_length` is set."""
    layout = Layout(tokenizer, params.layout)
    max_length, why = choose_max_length(layout.lengths(splits.train), wanted=params.max_length)
    chosen = params.max_length or params.packing == "padded"
    block_length = max_length if chosen else max(max_length, MAX_LENGTH)  # into short blocks little fits beside another
    train, truncation = layout.encode(splits.train, max_length)
    blocks = len(pack(train, block_length, strategy=params.packing, pad_token_id=tokenizer.pad_token_id))
    return Encoded(
        layout=layout,
        max_length=max_length,
        block_length=block_length,
        why=f"{why}; in blocks of {block_length:,}",
        train=train,
        validation=layout.encode(splits.validation, max_length)[0],
        test=layout.encode(splits.test, max_length)[0],
        truncation=truncation,
        blocks=blocks,
    )


def plan(model, encoded: Encoded, params: LegalParameters, runtime: Runtime) -> Plan:
    """What will run, and why; activations are recomputed where one block would not fit otherwise."""

    def planned(gradient_checkpointing: bool) -> Plan:
        return planner.plan(
            recipe(encoded.blocks, encoded.block_length, params.method, runtime.device_count),
            model_size(model),
            runtime,
            batch_size=params.batch_size,
            learning_rate=params.learning_rate,
            max_steps=params.max_steps,
            gradient_checkpointing=gradient_checkpointing,
        )

    try:
        return planned(params.gradient_checkpointing)
    except ValueError:
        if params.gradient_checkpointing:
            raise
    found = planned(True)  # or the same error
    return replace(found, reasons={**found.reasons, "gradient_checkpointing": "one block does not fit without"})


def training_job(model, params: LegalParameters) -> Job | None:
    """What a training step of this model is made of; None for one that no builder describes."""
    found = model_sizes.decoder_sizes(model.config)
    if found is None:
        return None
    sizes, settings = found
    return architectures.legal_cot_sft(sizes, "", method=params.method, lora_rank=params.lora_rank, **settings)


def forecast(model, params: LegalParameters, plan: Plan, runtime: Runtime) -> Forecast:
    """Time, memory and cost that the run is expected to take."""
    return forecasts.make(
        training_job(model, params),
        plan,
        runtime,
        architecture=model.config.model_type,
        parameters=sum(weight.numel() for weight in model.parameters()),
    )


def legal_trainer(
    model, encoded: Encoded, params: LegalParameters, plan: Plan, runtime: Runtime, output_dir: Path
) -> LegalTrainer:
    """The trainer of the run, on packed blocks."""
    return new_trainer(
        model,
        encoded.layout.tokenizer,
        encoded.train,
        encoded.validation,
        plan,
        runtime,
        output_dir,
        max_length=encoded.block_length,
        packing=params.packing,
        seed=params.seed,
        logging_steps=params.logging_steps,
        eval_steps=params.eval_steps,
        save_steps=params.save_steps,
        report_to=params.report_to,
        patience=params.patience,
    )


@dataclass(frozen=True)
class Examination:
    """What a model is asked before and after: the same held-out records, and labelled questions where there are any."""

    records: tuple[Record, ...]
    rows: list[dict[str, list[int]]]
    questions: Questions | None

    def take(
        self, model, encoded: Encoded, params: LegalParameters, runtime: Runtime
    ) -> tuple[dict[str, Any], list[Sample]]:
        """Metrics and texts: completion loss, format, steps, citations, stops, and accuracy on the questions, answered at
        once and after reasoning.
        """
        with autocast(runtime):
            metrics: dict[str, Any] = {"completion": loss_and_perplexity(model, self.rows)}
            answers, samples = evaluate_answers(
                model,
                encoded.layout.tokenizer,
                encoded.layout,
                self.records,
                max_new_tokens=params.max_new_tokens,
                batch_size=EVALUATION_BATCH,
                seed=params.seed,
            )
            metrics |= answers
            if self.questions is not None:
                metrics["questions"] = {
                    name: accuracy(
                        score_labels(
                            model,
                            encoded.layout,
                            self.questions.questions,
                            max_length=encoded.max_length + tokens,
                            batch_size=EVALUATION_BATCH,
                            reasoning_tokens=tokens,
                        )
                    )
                    for name, tokens in (("direct", 0), ("after_reasoning", params.max_new_tokens))
                }
        return metrics, samples


def examination(splits: RecordSplits, encoded: Encoded, params: LegalParameters) -> Examination:
    """The first `test_records` test records, and the questions of the file."""
    count = min(params.test_records, len(splits.test))
    questions = load_questions(params.questions, set_aside_single=True) if params.questions else None
    return Examination(splits.test[:count], encoded.test[:count], questions)


def autocast(runtime: Runtime) -> contextlib.AbstractContextManager:
    """The precision of the run for what is not training."""
    if runtime.precision == "fp32":
        return contextlib.nullcontext()
    dtype = torch.bfloat16 if runtime.precision == "bf16" else torch.float16
    return torch.autocast({"cuda": "cuda", "xla": "xla"}.get(runtime.kind, "cpu"), dtype=dtype)


def ask(model, encoded: Encoded, question: str, params: LegalParameters, runtime: Runtime) -> str:
    """The model's answer to one question, the likeliest token at every step."""
    with autocast(runtime):
        (answer,) = generate(
            model,
            encoded.layout.tokenizer,
            encoded.layout.prompt_ids([question]),
            max_new_tokens=params.max_new_tokens,
            stop_token_ids=encoded.layout.stop_token_ids,
        )
    return answer.text


def cost(measured: dict[str, Any], price_an_hour: float) -> str:
    """Time and money of a thousand more steps at the measured speed; `measured` is the `train` part of the results."""
    training = measured["seconds"] - measured["compile_seconds"] - measured["evaluate_and_save_seconds"]
    steps = max(1, measured["steps"])  # as the seconds, of all sessions of a run
    hours = 1000 * training / steps / 3600
    money = f", {hours * price_an_hour:.2f} at {price_an_hour:g} an hour" if price_an_hour else ""
    return f"1,000 steps at the measured {steps / max(training, 1e-9):.2f} steps/s: {hours:.2f} hours{money}"
