"""How good the whole last turn is, beside what costs nothing: its answer, its reasoning, and whether it stops.

# Q questions
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from statistics import mode
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from helpers.machine.decoding import MULTIPLE, base_of
from helpers.show.intervals import bootstrap, wilson
from helpers.show.tracking import say

from .data import Record, Records, parts_of
from .generation import Generated, generate

STRENGTH = 30  # of the linear model (sklearn's C), whose features are rows of length one
LAYERS = 6  # the probe reads each sixth layer, from the last
ROWS_A_LABEL = 5  # labels are few answers that come many times; others are written in words
SCORED = 100  # test records at most
UNTRAINED = 20  # of them are asked before training: that model seldom stops, so that an answer takes the longest time
LONGEST_ANSWER = 512  # tokens
LEAST_STOPS = 0.9  # share of answers that end by themselves: of a model that has learned where an answer ends
FREQUENT, NEAREST, WORDS = "most frequent answer", "nearest training record", "words (TF-IDF, logistic regression)"
PROBE, BASE, TRAINED = "linear probe on the frozen model", "base model", "trained"
MEASURES = STOPS, RIGHT, STEPS = "stops", "answer is right", "every step is right"


def baselines(model, template, records: Records, questions: Sequence[Record]) -> dict[str, list[str]]:
    """What the nearest training record answers and, for labels, the most frequent one and linear models on words and letters, and on
    the states of the model before its training (a linear probe: Alain and Bengio 2016)."""
    from sklearn.dummy import DummyClassifier
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, RidgeClassifierCV
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.preprocessing import StandardScaler

    train = records.splits["train"]
    texts = [record.question for record in train]
    labels = [record.answer for record in train]
    words = TfidfVectorizer(token_pattern=r"\w+", ngram_range=(1, 2), sublinear_tf=True)
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, min_df=2)
    simple = {NEAREST: KNeighborsClassifier(1, metric="cosine")}
    answers = {}
    if 1 < len({*labels}) <= len(labels) / ROWS_A_LABEL:
        simple |= {FREQUENT: DummyClassifier(), WORDS: LogisticRegression(C=STRENGTH, max_iter=1000)}
        states = partial(_states, model, template)
        probe = make_pipeline(StandardScaler(), RidgeClassifierCV())
        probe.fit([*map(states, train)], labels)
        answers[PROBE] = probe.predict([*map(states, questions)]).tolist()
    asked = [record.question for record in questions]
    for name, classifier in simple.items():
        pipeline = make_pipeline(make_union(words, letters), classifier).fit(texts, labels)
        answers[name] = pipeline.predict(asked).tolist()
    return answers


@torch.no_grad()
def _states(model, template, record: Record) -> np.ndarray:
    """The states of a prompt in some layers: their means, and the last ones. Padding, which no token sees, gives XLA few lengths."""
    ids = template.encode(template.prompt(record))
    ids_1L = pad(torch.tensor([ids]), (0, -len(ids) % MULTIPLE))
    outputs = base_of(model).base_model(ids_1L.to(model.device), output_hidden_states=True)
    states_SLD = torch.cat(outputs.hidden_states[::-LAYERS])
    states_SLD = states_SLD.float().cpu()[:, : len(ids)]
    return torch.cat([states_SLD.mean(1), states_SLD[:, -1]]).flatten().numpy()


# ---- asking the model


def write(trainer, template, prompts: Sequence[str], records: Iterable[Record]) -> list[Generated]:
    """What the model writes after each prompt, with half more tokens than the longest answer of `records`, at most LONGEST_ANSWER."""
    longest = max(len(template.encode(record.messages[-1]["content"])) for record in records)
    length = min(LONGEST_ANSWER, 8 + longest * 3 // 2)
    say(f"the model answers {len(prompts)} questions, with at most {length} tokens each")
    with trainer.compute_loss_context_manager():
        return generate(trainer.model, template, prompts, max_new_tokens=length)


def examine(trainer, template, records: Records, rows, *, count: int = SCORED) -> dict[str, Any]:
    """What a model makes of the test records: the loss of their own texts, and what it writes for the first `count` of them.

    rows: of the test records (`training.encode`). "samples" has text, answer and MEASURES of each: whether it ends by itself, and
        is the record's word for word; steps are measured of records that have some. "form" has the shares of MEASURES.
    """
    completion = trainer.completion_loss(rows)
    questions = records.splits["test"][:count]
    prompts = [template.prompt(record) for record in questions]
    samples = []
    shares = {}
    for record, output in zip(questions, write(trainer, template, prompts, questions), strict=True):
        reasoning, answer = parts_of(output.text)
        sample: dict[str, Any] = {"id": record.id, "text": output.text, "answer": answer, STOPS: output.stopped}
        sample[RIGHT] = same(answer, record.answer)
        if record.reasoning:
            sample[STEPS] = same(reasoning, record.reasoning)
        samples.append(sample)
    for name in MEASURES:
        values = [sample[name] for sample in samples if name in sample]
        if values:
            shares[name] = sum(values) / len(values)
    return {"completion": completion, "samples": samples, "form": shares}


def ask(trainer, template, records: Records, question: str) -> str:
    """The model's whole turn, reasoning included, with the system text that most records have."""
    messages = [{"role": "system", "content": system_text(records)}, {"role": "user", "content": question}]
    prompt = template.text([message for message in messages if message["content"]], ask=True)
    (output,) = write(trainer, template, [prompt], records.splits["test"])
    return output.text.strip()


def system_text(records: Records) -> str:
    """The system text that most training records have, or ""."""
    texts = []
    for record in records.splits["train"]:
        first = record.messages[0]
        texts.append(first["content"] * (first["role"] == "system"))
    return mode(texts)


def same(text: str, other: str) -> bool:
    """Whether two texts are equal but for case, white space and a full stop at the end."""
    words = " ".join(text.casefold().split())
    other_words = " ".join(other.casefold().split())
    return words.rstrip(".") == other_words.rstrip(".")


# ---- scores, and what is shown of them


def right(answers: Iterable[str], questions: Iterable[Record]) -> list[bool]:
    """Which answers to the first of these questions are those of the records."""
    return [same(answer, record.answer) for answer, record in zip(answers, questions, strict=False)]


def scores(systems: Mapping[str, Sequence[float]], questions: Sequence[Record]) -> dict[str, Any]:
    """The share of right answers of each system, and the difference of the trained one to it, with intervals over documents.

    systems: by name whether each answer is right, or in how many seeds, to `questions` or to the first of them. Differences
        are paired.
    """
    groups = [record.group or record.id for record in questions]
    shares, differences = {}, {}
    for name, values in systems.items():
        answered = groups[: len(values)]
        share = wilson(float(np.mean(values)), len({*answered}))
        shares[name] = asdict(share) | {"questions": len(values)}
        if name != TRAINED and TRAINED in systems:
            difference_Q = np.subtract(systems[TRAINED][: len(values)], values, dtype=float)
            less = bootstrap(np.mean, difference_Q, groups=answered)
            differences[name] = asdict(less) | {"outcome": less.outcome, "shown": str(less)}
    return {"questions": len(questions), "groups": len({*groups}), "systems": shares, "trained less": differences}


def table(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each system of `scores`, in percent with 95 % intervals."""
    rows = []
    for name, values in results["systems"].items():
        share = f"{values['value']:.1%} ({values['low']:.1%} to {values['high']:.1%})"
        rows.append({"answers": name, "right": share, "questions": values["questions"]})
    return rows


def verdict(results: Mapping[str, Any], after: Mapping[str, Any], trainer) -> list[str]:
    """A sentence for the base model and for the best method that costs nothing, and one for a model that has hardly learned.

    results: `scores`. after: `examine` of the trained model.
    """
    values = {name: share["value"] for name, share in results["systems"].items()}
    stops = after["form"][STOPS]
    right_share = values.pop(TRAINED)
    lines = []
    if stops < LEAST_STOPS or right_share <= values.get(FREQUENT, -1):
        lines.append(
            f"The model has hardly learned its records: {stops:.0%} of its answers end by themselves, {right_share:.0%} are right. "
            f"Raise learning_rate (it was {trainer.plan.learning_rate:g}) or max_steps (it was {trainer.plan.max_steps}), or add records."
        )
    del values[BASE]
    for name in (max(values, key=lambda name: values[name]), BASE):
        less = results["trained less"][name]
        count = results["systems"][name]["questions"]
        lines.append(
            f"The trained model compared with {name}: {less['outcome']}, {less['shown']}, {count} questions, of one training."
        )
    return lines
