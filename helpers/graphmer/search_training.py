"""A sentence encoder tuned on docstrings: sentence-transformers' trainer and its MultipleNegativesRankingLoss.

model = load_sentence_encoder("sentence-transformers/all-MiniLM-L6-v2", max_seq_length=CODE_TOKENS)
freeze_lower_half(model)
trainer = new_search_trainer(model, in_batches(rows, ...), dev, MultipleNegativesRankingLoss(model), plan, machine, folder)
trainer.train()
rank_questions(model, test)     reciprocal ranks of the right code: by BM25, by the encoder, by both

# Q questions · N definitions · G groups of questions
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from scipy.stats import rankdata
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from helpers.machine.runtime import Runtime
from helpers.plan import settings
from helpers.plan.settings import Plan, Recipe
from helpers.show.intervals import bootstrap
from helpers.train.arguments import training_arguments
from helpers.train.sentence_encoder import SentenceEncoderTrainer

from .search import CODE_TOKENS, CodeSearch, embed, fuse

BATCH, STEPS, LEARNING_RATE = 32, 120, 1e-4


def freeze_lower_half(model: SentenceTransformer) -> None:
    """Freezes all but the upper half of the layers."""
    stacks = [part for part in model.modules() if isinstance(part, torch.nn.ModuleList)]
    layers = max(stacks, key=len)
    model.requires_grad_(False)
    layers[len(layers) // 2 :].requires_grad_(True)


def search_plan(model: SentenceTransformer, steps: int, runtime: Runtime, **by_user) -> Plan:
    """Settings of a run of so many steps, 0: 120, of 32 pairs, a question and a code each. by_user: as `plan` takes them.

    Raises as `plan` does.
    """

    def batch(examples):
        ids = torch.ones(examples, CODE_TOKENS, dtype=torch.long)
        return [{"input_ids": ids.clone(), "attention_mask": ids.clone()} for _ in range(2)]

    recipe = Recipe(
        batch_size=BATCH,
        learning_rate=LEARNING_RATE,
        max_steps=steps or STEPS,
        sequence_length=CODE_TOKENS,
        warmup_fraction=0.1,
        tpu_batch_factor=1,
        tpu_learning_rate_factor=1.0,
    )
    loss = MultipleNegativesRankingLoss(model)
    return settings.plan(recipe, loss, lambda loss, columns: loss(columns, None), batch, runtime, **by_user)


def new_search_trainer(
    model: SentenceTransformer,
    rows: Dataset,
    dev: Dataset,
    loss,
    plan: Plan,
    runtime: Runtime,
    output_dir: Path | str,
    *,
    max_hours: float = 0.0,
    **overrides,
) -> SentenceEncoderTrainer:
    """The trainer of a run of `plan.max_steps` batches, which ends with the weights of the least loss on `dev`.

    rows, dev: question and code, a batch after the other (`pairs.in_batches`).
    overrides: fields of `SentenceTransformerTrainingArguments`.
    """
    interval = max(1, plan.max_steps // 4)
    arguments = training_arguments(
        plan,
        runtime,
        output_dir,
        cls=SentenceTransformerTrainingArguments,
        logging_steps=max(1, interval // 4),
        eval_steps=interval,
        save_steps=interval,
        per_device_eval_batch_size=plan.micro_batch_size,
        **overrides,
    )
    return SentenceEncoderTrainer(
        model,
        length=CODE_TOKENS,
        args=arguments,
        train_dataset=rows,
        eval_dataset=dev,
        loss=loss,
        plan=plan,
        runtime=runtime,
        max_hours=max_hours,
    )


# ---- what the search is worth


def rank_questions(model: SentenceTransformer, held_out: Dataset) -> dict[str, np.ndarray]:
    """Reciprocal ranks [Q] of the right code among those of its package: by BM25, by the encoder, and fused as the search does."""
    ranks: dict[str, list[float]] = defaultdict(list)
    packages = np.array(held_out["package"])
    for package in dict.fromkeys(held_out["package"]):
        rows = held_out.select(np.flatnonzero(packages == package))
        codes, questions = [*rows["code"]], [*rows["question"]]
        first_lines = [code.partition("\n")[0] for code in codes]
        search = CodeSearch(first_lines, codes)
        cosines_QN = embed(model, questions) @ embed(model, codes).T
        for place, (question, cosine_N) in enumerate(zip(questions, cosines_QN, strict=True)):
            lexical_N, _ = search.scores(question)
            scores = {"BM25": lexical_N, "encoder": cosine_N, "fused": fuse(lexical_N, cosine_N)}
            for name, scores_N in scores.items():
                ranks[name].append(reciprocal_rank(scores_N, place))
    return {name: np.array(values) for name, values in ranks.items()}


def reciprocal_rank(scores_N, right: int) -> float:
    """Of the candidate `right`; equal scores share the mean of their ranks."""
    return float(1 / rankdata(-scores_N)[right])


def verdict(rows: Mapping[str, Sequence[float]], groups: Sequence[str], best: str) -> list[dict]:
    """MRR of each row, and how far the row `best` is above it, with a 95 % interval: a bootstrap over groups of questions."""
    table = []
    for name, ranks_Q in rows.items():
        difference_Q = np.subtract(rows[best], ranks_Q)
        interval = bootstrap(np.mean, difference_Q, groups=groups)
        above = "" if name == best else str(interval)
        mean = round(float(np.mean(ranks_Q)), 3)
        table.append({"row": name, "MRR": mean, f"{best} above it (95 %)": above})
    return table
