"""Embeddings of the graph, by PyKEEN's own pipeline, asked which function is meant by a call that static resolution leaves open.

    pip install pykeen
    python benchmarks/graph_embeddings.py          # ten minutes on one core, with the packages fetched and traced

The questions, their candidates and the truth are those of graph_calls.py. PyKEEN trains TransE, DistMult, ComplEx and RotatE on the
resolved triples of all packages that are asked, together, three seeds; a candidate is ranked by the score of (caller, calls, candidate). That
is more than the encoder gets, which never saw these packages: embeddings know only what they were trained on. The open calls themselves
are no triples, so no answer is trained on, unless the resolver proves the same call elsewhere in the caller. Left out are triples of
tests, which only some packages bring along, and parameters, of which each has one triple.

Rows: each model alone, and in the conditional logit with the lexical features. Beside them a simple method that reads the same triples: a
walk from the caller which starts anew after a few steps (personalised PageRank) says what is near.

MRR among all entities, by PyKEEN's own evaluator, on triples of a tenth that was held out at random by its own split, is the figure of
its literature. It says whether training worked, beside counts (PyKEEN's marginal distribution), and nothing about open calls. Loss and start
of each model were chosen by that figure on four of the packages, with another seed, before an open call was asked.
Training takes a fixed number of epochs.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

with contextlib.suppress(
    ImportError
):  # before transformers brings bitsandbytes, whose optimizers have names that PyKEEN wants
    import pykeen.pipeline  # noqa: F401

import numpy as np
from scipy.sparse import coo_array, csr_array, diags_array

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.graph_calls import LEXICAL, Question, is_test, rankings, read
from benchmarks.held_out_packages import PACKAGES, Environment

ROOT = Path(__file__).resolve().parents[1]
JEDI = "jedi, then lexical"
WIDTH = 128  # real numbers an entity
EPOCHS, BATCH, NEGATIVES = 10, 4096, 2
TESTED = 150  # triples that are asked, each from both ends
STARTS = dict.fromkeys(("entity_initializer", "relation_initializer"), "xavier_uniform")
MODELS = {
    "TransE": {"model_kwargs": {"embedding_dim": WIDTH}, "loss": "nssa"},
    "DistMult": {"model_kwargs": {"embedding_dim": WIDTH}, "loss": "marginranking"},
    # Of complex numbers, as RotatE's. With the model's own start and regularizer it does not learn in so few steps.
    "ComplEx": {"model_kwargs": {"embedding_dim": WIDTH // 2, "regularizer": None, **STARTS}, "loss": "softplus"},
    "RotatE": {"model_kwargs": {"embedding_dim": WIDTH // 2}, "loss": "marginranking"},
}
RATE = 0.02
MRR, HITS = "both.realistic.inverse_harmonic_mean_rank", "both.realistic.hits_at_10"
COUNTS, WALK, RESTART = "counts", "walk from the caller", 0.15


# ---- PyKEEN


def of_code(graph) -> list[tuple[str, str, str]]:
    """Resolved triples without tests and parameters."""
    return [
        tuple(triple)
        for triple in graph.resolved()
        if triple.relation != "has_parameter"
        and not any(is_test(graph.entities[end].module) for end in (triple.head, triple.tail))
    ]


def split(triples: Sequence[tuple[str, str, str]], seed: int) -> list:
    """PyKEEN's factories of training and test; the first has every entity."""
    from pykeen.triples import TriplesFactory

    return TriplesFactory.from_labeled_triples(np.array(triples, dtype=str)).split(0.9, random_state=seed)


def few(factory, count: int, seed: int):
    """So many of a factory's triples, drawn."""
    chosen = sorted(random.Random(seed).sample(range(factory.num_triples), min(count, factory.num_triples)))
    return factory.clone_and_exchange_triples(factory.mapped_triples[chosen])


def trained(model: str, training, testing, seed: int, epochs: int = EPOCHS):
    """What PyKEEN's pipeline returns."""
    from pykeen.pipeline import pipeline

    return pipeline(
        training=training,
        testing=few(testing, TESTED, seed),
        model=model,
        **MODELS[model],
        optimizer="adam",
        optimizer_kwargs={"lr": RATE},
        negative_sampler_kwargs={"num_negs_per_pos": NEGATIVES},
        epochs=epochs,
        training_kwargs={"batch_size": BATCH},
        evaluation_kwargs={"batch_size": 4, "additional_filter_triples": [testing.mapped_triples]},
        device="cpu",
        random_seed=seed,
        use_tqdm=False,
    )


def counted(training, testing, seed: int) -> dict[str, float]:
    """The same figures by counts of training alone."""
    import torch
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.models import MarginalDistributionBaseline

    model = MarginalDistributionBaseline(training)
    model.register_buffer("place", torch.zeros(1))  # PyKEEN asks weights for their device, and it has none
    found = RankBasedEvaluator().evaluate(
        model,
        few(testing, TESTED, seed).mapped_triples,
        batch_size=4,
        use_tqdm=False,
        additional_filter_triples=[training.mapped_triples, testing.mapped_triples],
    )
    return {"mrr": found.get_metric(MRR), "hits@10": found.get_metric(HITS)}


def calls(model, factory) -> Callable[[str, list[str]], np.ndarray]:
    """Scores of (caller, calls, each candidate) by a trained model."""
    import torch

    relation = factory.relation_to_id["calls"]

    def score(caller: str, candidates: list[str]) -> np.ndarray:
        numbers = [(factory.entity_to_id[caller], relation, factory.entity_to_id[each]) for each in candidates]
        with torch.inference_mode():
            return model.score_hrt(torch.tensor(numbers)).numpy()[:, 0].astype(float)

    return score


# ---- a walk


def walks(triples: Iterable[tuple[str, str, str]], steps: int = 20) -> Callable[[str, list[str]], np.ndarray]:
    """How often a walk from a caller is at each candidate: triples are walked in both directions, and as often as they are there."""
    numbers: dict[str, int] = {}
    ends = [[numbers.setdefault(end, len(numbers)) for end in (head, tail)] for head, _, tail in triples]
    heads, tails = np.array(ends).T
    shape = (len(numbers), len(numbers))
    to_EE = coo_array((np.ones(2 * len(heads)), (np.r_[heads, tails], np.r_[tails, heads])), shape).tocsr()
    step_EE = csr_array(diags_array(1 / to_EE.sum(1)) @ to_EE).T

    def score(caller: str, candidates: list[str]) -> np.ndarray:
        start_E = np.zeros(len(numbers))
        start_E[numbers[caller]] = 1
        there_E = start_E
        for _ in range(steps):
            there_E = RESTART * start_E + (1 - RESTART) * (step_EE @ there_E)
        return there_E[[numbers[each] for each in candidates]]

    return score


# ---- rows


def scores(
    asked: list[Question], known: Iterable[str], score: Callable[[str, list[str]], np.ndarray]
) -> list[np.ndarray]:
    """Of each question's candidates; one that no triple has gets the mean of the others, and all are equal where the caller is such."""
    known, found = set(known), []
    for question in asked:
        there = [place for place, name in enumerate(question.candidates) if name in known]
        values = np.zeros(len(question.candidates))
        if question.caller in known and there:
            own = score(question.caller, [question.candidates[place] for place in there])
            values[:] = own.mean()
            values[there] = own
        found.append(values)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", nargs="*", default=[*PACKAGES], choices=PACKAGES)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--folder", type=Path, default=Path("outputs/held_out_packages"))
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/graphmer_embeddings_cpu.json")
    given = parser.parse_args()
    about = report.machine("cpu", ("torch", "pykeen"))

    environment = Environment(given.folder)
    asked: list[Question] = []
    counts, seen = {}, {}
    for package in given.packages:
        inside, counts[package], graph, _ = read(package, environment)
        print(package, counts[package], flush=True)
        if inside:
            asked += inside
            seen |= dict.fromkeys(of_code(graph))
    triples = list(seen)
    known = {end for head, _, tail in triples for end in (head, tail)}

    found = rankings(asked)
    names, drawn = [*asked[0].features], found.resamples()
    lexical_R = found.left_out(names)
    bases = {LEXICAL: found.ranks(lexical_R), JEDI: found.ranks(lexical_R + 1000 * found["jedi"])}
    ranks = {"chance": [found.ranks(np.zeros(len(lexical_R)))]} | {name: [each] for name, each in bases.items()}
    held_out: dict[str, list[dict]] = {name: [] for name in (COUNTS, *MODELS)}

    done: list[int] = []

    def add(name: str, values: list[np.ndarray]) -> None:
        found.add(name, values)
        ranks.setdefault(name, []).append(found.ranks(found[name]))
        ranks.setdefault(f"lexical and {name}", []).append(found.ranks(found.left_out([*names, name])))

    def write() -> None:
        report.write(
            given.output,
            about,
            seeds=done,
            packages=counts,
            graph={"triples": len(triples), "entities": len(known)},
            unknown={
                "callers": sum(one.caller not in known for one in asked),
                "candidates": float(np.mean([name not in known for one in asked for name in one.candidates])),
            },
            settings={
                "epochs": given.epochs, "width": WIDTH, "batch": BATCH, "negatives": NEGATIVES, "tested": TESTED,
                "models": MODELS, "rate": RATE,
            },
            held_out=held_out,
            rows={name: found.row(each, bases, drawn) for name, each in ranks.items()},
        )  # fmt: skip

    add(WALK, scores(asked, known, walks(triples)))
    for seed in given.seeds:
        training, testing = split(triples, seed)
        held_out[COUNTS].append({"seed": seed} | counted(training, testing, seed))
        for model in MODELS:
            begin = time.process_time()
            result = trained(model, training, testing, seed, given.epochs)
            add(model, scores(asked, known, calls(result.model, training)))
            held_out[model].append(
                {
                    "seed": seed,
                    "mrr": result.get_metric(MRR),
                    "hits@10": result.get_metric(HITS),
                    "losses": result.losses,
                    "processor_seconds": round(time.process_time() - begin, 1),
                }
            )
            print(model, seed, held_out[model][-1], flush=True)
        done.append(seed)
        write()


if __name__ == "__main__":
    main()
