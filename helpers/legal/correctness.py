"""Whether what is written for held-out questions is right, beside answers that cost nothing.

# Q questions · T training questions · W words
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from helpers.run import run_folder
from helpers.show import tables

from . import harness
from .generation import Generated, generate
from .layout import Layout, Response, is_conversation, parse_response, response, steps_of
from .records import Record
from .validation import citations

RESAMPLES = 2_000


@dataclass(frozen=True)
class Sample:
    """One held-out record and what was written for it."""

    record: Record
    generated: Generated

    @functools.cached_property
    def response(self) -> Response:
        return parse_response(self.generated.text, self.record)

    def __str__(self) -> str:
        form = "well-formed" if self.response.well_formed else self.response.problems[0]
        end = "stopped by itself" if self.generated.stopped else "cut off"
        return f"{form}; {self.response.steps} steps; {len(self.generated.text.split())} words, {end}"


def answers(model, layout: Layout, records: Sequence[Record], **options) -> list[Sample]:
    """What `model` writes for each record's question; options as of `generate`."""
    return [*map(Sample, records, generate(model, layout, records, **options))]


# ---- measures: from 0 (wrong) to 1 (right) for one question, None where there is nothing to measure


def _cited(sample: Sample) -> float | None:
    """Share of the record's citations that are cited."""
    entries = citations(sample.record.case_citation)
    return fmean(entry in sample.response.case_citation for entry in entries) if entries else None


def _steps(sample: Sample) -> float | None:
    """Numbered without a gap, and as many as the record has."""
    numbers, own = (steps_of(each.reasoning) for each in (sample.response, sample.record))
    return len(numbers) >= len(own) and numbers == [*range(1, len(numbers) + 1)] if own else None


MEASURES: dict[str, Callable[[Sample], float | None]] = {
    "cited": _cited,
    "steps": _steps,
    "format": lambda sample: None if is_conversation(sample.record) else sample.response.well_formed,
    "stops": lambda sample: sample.generated.stopped,
}


def measure(samples: Sequence[Sample]) -> dict[str, Any]:
    """Every measure over `samples` as `rate` or `mean` gives it, and the mean number of steps and of words, all and reasoning."""
    found: dict[str, Any] = {}
    for name, function in MEASURES.items():
        values = [float(value) for sample in samples if (value := function(sample)) is not None]
        if values:
            found[name] = rate(int(sum(values)), len(values)) if {*values} <= {0.0, 1.0} else mean(values)
    found["mean_steps"] = fmean(sample.response.steps for sample in samples)
    found["mean_reasoning_words"] = fmean(len(sample.response.reasoning.split()) for sample in samples)
    found["mean_words"] = fmean(len(sample.generated.text.split()) for sample in samples)
    return found


def rate(count: int, of: int) -> dict[str, float | int | None]:
    """`count` of `of`, with the 95 % interval of Wilson (1927), which stays inside 0 and 1 and holds for few trials."""
    from scipy.stats import binomtest

    low, high = binomtest(count, of).proportion_ci(0.95, method="wilson") if of else (0.0, 1.0)
    return {"rate": count / of if of else None, "count": count, "of": of, "low": float(low), "high": float(high)}


def mean(values: Sequence[float]) -> dict[str, float | int]:
    """Mean of shares, one a question, with its 95 % interval by the percentile bootstrap over questions."""
    import numpy as np

    drawn_Q = np.random.default_rng(0).choice(values, (RESAMPLES, len(values))).mean(1)
    low, high = np.quantile(drawn_Q, (0.025, 0.975))
    return {"rate": fmean(values), "of": len(values), "low": float(low), "high": float(high)}


# ---- answers that cost nothing


def baselines(train: Sequence[Record], asked: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """`measure` of copied answers: the training record with the most steps (constant), the one whose question is most like
    the question (`nearest`), and the question's own (gold: what it does not reach is no measure, `left_out`).
    """
    constant = max(train, key=lambda record: len(steps_of(record.reasoning)))
    near = nearest([record.question for record in train], [record.question for record in asked])
    sources = {
        "constant": [constant] * len(asked),
        "nearest training record": [train[row] for row in near],
        "gold": asked,
    }
    return {name: measure([*map(Sample, asked, map(_copied, records))]) for name, records in sources.items()}


def _copied(record: Record) -> Generated:
    return Generated(response(record), (), stopped=True)


def nearest(train: Sequence[str], asked: Sequence[str]) -> list[int]:
    """Row of the text of `train` that is most like each of `asked`, by the cosine of their words' TF-IDF."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(token_pattern=r"\w+").fit(train)
    words.idf_ = words.idf_ - 1  # a word of every text then weighs nothing
    similar_QT = words.transform(asked) @ words.transform(train).T
    return similar_QT.toarray().argmax(1).tolist()


# ---- to read


def left_out(gold: Mapping[str, Any]) -> dict[str, float]:
    """Measures that the records themselves do not pass, which would say nothing about a model."""
    return {name: gold[name]["rate"] for name in MEASURES if name in gold and gold[name]["rate"] < 1}


def note(references: Mapping[str, Any]) -> str:
    """What the table is of, and what is left out of it."""
    gold = references["gold"]
    text = f"Percent of {gold['stops']['of']} questions, with 95 % intervals over them"
    if out := left_out(gold):
        listed = ", ".join(f"{name} {share:.0%}" for name, share in out.items())
        text += f"; not shown, because the records themselves do not pass: {listed}"
    return text


def table(
    references: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any] | None = None
) -> list[dict[str, str | float | None]]:
    """A row for each of `baselines` and for the model; gold is last."""
    systems, shown = _compared(references, before, after)
    rows = []
    for system, found in systems.items():
        cells = {name: "{rate:.0%} [{low:.0%}, {high:.0%}]".format(**found[name]).replace("%", "") for name in shown}
        means = {name.replace("_", " "): round(found[name], 1) for name in found if name.startswith("mean_")}
        rows.append({"answers": system} | cells | means)
    return rows


def show(references, before, after=None) -> None:
    """Shows `table` of each set of questions, after training that of labelled ones too; arguments as `table`'s, by set."""
    for name, own in references.items():
        tables.show(table(own, before[name], after and after[name]), f"{name}: {note(own)}")
    if after and "questions" in after["test"]:
        asked = harness.table(before=before["test"]["questions"], after=after["test"]["questions"])
        tables.show(asked, "Labelled questions, by lm-evaluation-harness")


def plot(references, before, after, path: Path):
    """The first measure of each table that is shown as bars with 95 % intervals, written as PNG: the matplotlib figure."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(before), figsize=(9, 2.8), sharey=True, squeeze=False, layout="constrained")
    for axes, (name, own) in zip(panels[0], references.items(), strict=True):
        systems, (measure, *_) = _compared(own, before[name], after[name])
        for system, found in systems.items():
            rate, low, high = (100 * found[measure][key] for key in ("rate", "low", "high"))
            color = "tab:blue" if system == "trained" else "lightsteelblue"
            axes.barh(system, rate, xerr=[[abs(rate - low)], [abs(high - rate)]], color=color, ecolor="0.3", capsize=3)
        questions = f"percent right of {found[measure]['of']} questions, with 95 % intervals"
        axes.set(title=f"{name}: {measure}", xlabel=questions, xlim=(0, 105))
    axes.invert_yaxis()
    return run_folder.saved(figure, path)


def _compared(references, before, after) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """What is compared, gold last, and by which measures."""
    systems, gold = {**references, "base model": before, "trained": after}, references["gold"]
    systems["gold"] = systems.pop("gold")
    shown = [name for name in MEASURES if name in gold and name not in left_out(gold)]
    return {name: found for name, found in systems.items() if found}, shown


def beside(before: Sequence[Sample], after: Sequence[Sample], count: int) -> str:
    """The first `count` questions with the texts before and after training and the record's own."""
    lines = []
    for first, second in itertools.islice(zip(before, after, strict=True), count):
        record = first.record
        lines += [f"=== {record.id} ({record.difficulty}): {record.question}"]
        for title, sample in (("before", first), ("after", second)):
            lines += [f"\n--- {title} training: {sample}", str(sample.generated)]
        lines += ["\n--- the reference", response(record), ""]
    return "\n".join(lines)
