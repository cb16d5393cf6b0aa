"""Labelled legal questions by lm-evaluation-harness: its own tasks (LegalBench, ContractNLI, MMLU) and files of one's own."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.data import data_files
from helpers.machine.engine import cpu_copy
from helpers.parameters import did_you_mean
from helpers.run import provenance

from .records import TEXT

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SUFFIXES = (".tsv", ".jsonl")
EXAMPLES = "legalbench, legalbench_contract_nli or mmlu_professional_law"


def load_tasks(questions: str) -> list[Any]:
    """What `lm_eval.simple_evaluate` takes as tasks.

    questions: names of the harness's tasks with commas between them, or a .tsv with a header or a .jsonl with the columns
        `text` and `answer`. The column `task` parts tasks. The options of a task are all answers that occur in it.

    Raises ImportError where lm-evaluation-harness is not installed, and ValueError for a name that it does not know, a row
    without text or answer, and a task with a single answer, which leaves nothing to choose.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise ImportError(
            f"questions={questions!r} needs lm-evaluation-harness: add a cell with `%pip install lm_eval` above the first, restart "
            "the kernel and run all again, or leave questions empty"
        )
    if Path(questions).suffix in SUFFIXES:
        return [_task(name, rows) for name, rows in read_tasks(questions).items()]
    from lm_eval.tasks import TaskManager

    names, known = [name.strip() for name in questions.split(",")], TaskManager().all_tasks
    for name in names:
        if name not in known:
            raise ValueError(
                f"questions={questions!r}: lm-evaluation-harness has no task {name!r}; {did_you_mean(name, known)}give names as "
                f"{EXAMPLES}, or a .tsv or .jsonl of your own"
            )
    return names


def read_tasks(path: str) -> dict[str, list[dict[str, str]]]:
    """Text and answer of each row of a file, by task; raises ValueError as `load_tasks`."""
    tasks: dict[str, list[dict[str, str]]] = {}
    for row in data_files.rows("questions", Path(path).expanduser(), SUFFIXES):
        asked = {column: data_files.text(row, column, TEXT).strip() for column in ("text", "answer")}
        if not all(asked.values()):
            raise ValueError(
                f"{row.where}: `text` or `answer` is missing or empty; fields found: {', '.join(map(str, row.values))}"
            )
        tasks.setdefault(data_files.text(row, "task", TEXT) or Path(path).stem, []).append(asked)
    single = [name for name, rows in tasks.items() if len(_options(rows)) < 2]
    if single or not tasks:
        said = (
            f"all answers of task {single[0]!r} are the same; add rows, or leave it out" if single else "holds no row"
        )
        raise ValueError(f"questions={path!r}: {said}")
    return tasks


def _task(name: str, rows: list[dict[str, str]]) -> dict[str, Any]:
    from datasets import Dataset

    return {
        "task": name,
        "custom_dataset": lambda **_: {"test": Dataset.from_list(rows)},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}\nAnswer:",
        "doc_to_target": "answer",
        "doc_to_choice": _options(rows),
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    }


def _options(rows: list[dict[str, str]]) -> list[str]:
    return sorted({row["answer"] for row in rows})


def evaluate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, questions: str, *, batch_size: int = 8
) -> dict[str, Any]:
    """What the harness finds with its own prompts and metrics, by task, and what pins it: versions and hashes of the questions.

    Of a file also what an answer without reading would reach: `uniform_chance`, and `best_constant`, the most frequent one.
    Autocast is the caller's. On XLA a copy on the CPU is asked, because the harness's batches have many shapes.

    Raises as `load_tasks`.
    """
    tasks = load_tasks(questions)
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    asked = (cpu_copy(model) if model.device.type == "xla" else model).eval()
    wrapped = HFLM(pretrained=asked, tokenizer=copy.deepcopy(tokenizer), batch_size=batch_size)
    found = lm_eval.simple_evaluate(model=wrapped, tasks=tasks)
    results = {name: _numbers(values) for name, values in found["results"].items()}
    if Path(questions).suffix in SUFFIXES:
        for name, rows in read_tasks(questions).items():
            counts = Counter(row["answer"] for row in rows)
            results[name] |= {"uniform_chance": 1 / len(counts), "best_constant": max(counts.values()) / len(rows)}
    return {
        "lm_eval": provenance.version("lm_eval"),
        "tasks": results,
        "versions": found["versions"],
        "examples_in_the_prompt": found["n-shot"],
        "hashes": {name: _hash(samples) for name, samples in found["samples"].items()},
    }


def _hash(samples: list[Mapping[str, Any]]) -> str:
    return hashlib.sha256("".join(each["prompt_hash"] + each["target_hash"] for each in samples).encode()).hexdigest()


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics without the filter in their names; a group of tasks has words in the place of numbers."""
    return {
        name.removesuffix(",none").replace(",", " "): value
        for name, value in values.items()
        if isinstance(value, int | float)
    }


def table(**found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each task and measure, a column for each argument that `evaluate` returned, for `tables.show`."""
    first = next(iter(found.values()))
    return [
        {"task": task, "measure": measure} | {when: each["tasks"][task].get(measure) for when, each in found.items()}
        for task, measures in first["tasks"].items()
        for measure in measures
    ]
