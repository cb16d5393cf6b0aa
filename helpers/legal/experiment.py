"""The steps of a legal fine-tuning run: records to blocks, the model asked before and after, and what is written at the end."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from helpers.plan import Plan
from helpers.runtime import Runtime

from .evaluation import Sample, evaluate_answers, loss_and_perplexity
from .generation import generate
from .layout import Layout, Truncation, choose_max_length
from .multiple_choice import Questions, accuracy, load_questions, score_labels
from .packing import pack
from .parameters import LegalParameters
from .records import Record, RecordSplits
from .training import LegalTrainer, new_trainer

EVALUATION_BATCH = 8


@dataclass(frozen=True)
class Encoded:
    """The splits as token rows no longer than a block."""

    layout: Layout
    max_length: int
    why: str
    train: list[dict[str, list[int]]]
    validation: list[dict[str, list[int]]]
    test: list[dict[str, list[int]]]
    truncation: Truncation  # of the training records
    blocks: int  # of the training rows, packed


def encode(splits: RecordSplits, tokenizer, params: LegalParameters) -> Encoded:
    """Rows with labels on the completions only; `max_length` follows from the training records unless it is set."""
    layout = Layout(tokenizer, params.layout)
    max_length, why = choose_max_length(layout.lengths(splits.train), wanted=params.max_length)
    train, truncation = layout.encode(splits.train, max_length)
    blocks = len(pack(train, max_length, strategy=params.packing, pad_token_id=tokenizer.pad_token_id))
    return Encoded(
        layout=layout,
        max_length=max_length,
        why=why,
        train=train,
        validation=layout.encode(splits.validation, max_length)[0],
        test=layout.encode(splits.test, max_length)[0],
        truncation=truncation,
        blocks=blocks,
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
        max_length=encoded.max_length,
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
        """Metrics and texts: completion loss, format, steps, citations, stops, and accuracy on the questions."""
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
                scored = score_labels(
                    model,
                    encoded.layout,
                    self.questions.questions,
                    max_length=encoded.max_length,
                    batch_size=EVALUATION_BATCH,
                )
                metrics["questions"] = accuracy(scored)
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


def cost(trainer, price_an_hour: float) -> str:
    """Time and money of a thousand more steps at the measured speed."""
    measured = trainer.results()["train"]
    training = measured["seconds"] - measured["compile_seconds"] - measured["evaluate_and_save_seconds"]
    steps = max(1, measured["steps"] - (measured["resumed_from_step"] or 0))
    hours = 1000 * training / steps / 3600
    money = f", {hours * price_an_hour:.2f} at {price_an_hour:g} an hour" if price_an_hour else ""
    return f"1,000 steps at the measured {steps / max(training, 1e-9):.2f} steps/s: {hours:.2f} hours{money}"
