"""What a trained GraphMER encoder is worth: held-out links beside baselines, masked tokens, and tables of both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from helpers.graphmer import experiment
from helpers.graphmer.configuration import Configuration, override
from helpers.graphmer.experiment import Corpus
from helpers.graphmer.links import ranking
from helpers.graphmer.links.baselines import Frequency, lexical_scorers
from helpers.graphmer.links.fusion import ScoreFusion
from helpers.graphmer.links.predictor import LinkPredictor
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining
from helpers.graphmer.training import LeafyChainCollator
from helpers.machine.engine import cpu_copy
from helpers.machine.runtime import Runtime


def encoder_scorer(predictor: LinkPredictor, corpus: Corpus) -> ScoreFusion:
    """Scores triples by the encoder and by how often training has their parts, each weighed on the validation triples.

    Whether g calls f is asked at both ends: does a masked leaf `calls` of g's source expect `f`, and `called_by` of f's source `g`?
    """
    return _weighed(predictor.ends(), corpus)


def with_lexical_baseline(predictor: LinkPredictor, corpus: Corpus, configuration: Configuration) -> ScoreFusion:
    """The scorer of the encoder and the lexical baseline together, weighed on validation."""
    return _weighed(_lexical(corpus) | predictor.ends(), corpus, configuration.run.seed)


def _lexical(corpus: Corpus) -> dict[str, ranking.Scorer]:
    return lexical_scorers(corpus.graph, corpus.documents.text)


def _weighed(scorers: dict[str, ranking.Scorer], corpus: Corpus, seed: int = 0) -> ScoreFusion:
    counts = {"counts": Frequency.of(corpus.splits.train)}
    return ScoreFusion.fitted(scorers | counts, corpus.splits, corpus.graph, corpus.ontology, seed=seed)


def links(scorer: ranking.Scorer, corpus: Corpus, configuration: Configuration) -> dict:
    """`ranking.evaluate` of any scorer on the test triples that the configuration asks for."""
    return ranking.evaluate(
        scorer,
        corpus.splits,
        corpus.graph,
        corpus.ontology,
        max_queries=configuration.evaluation.max_triples,
        seed=0,  # the same triples whatever the run's seed
    )


@torch.no_grad()
def masked(model: GraphMERForPreTraining, corpus: Corpus, configuration: Configuration) -> dict:
    """Accuracy on masked roots (MLM) and masked leaves (MNM) of at most 64 validation batches."""
    model = (cpu_copy(model) if model.device.type == "xla" else model).eval()
    chains, size = corpus.validation, configuration.evaluation.micro_batch_size
    collate = LeafyChainCollator(chains)
    counts: dict[str, torch.Tensor | int] = {"mlm": 0, "mnm": 0}
    for first in range(0, min(len(chains), 64 * size), size):
        batch = collate([chains[index] for index in range(first, min(first + size, len(chains)))])
        batch = {name: value.to(model.device) for name, value in batch.items()}
        counts["mlm"] += count_right(model.root_logits(**batch), batch["mlm_labels"])
        counts["mnm"] += count_right(model.leaf_logits(**batch), batch["mnm_labels"])
    (roots, asked), leaves = counts["mlm"].tolist(), counts["mnm"].tolist()
    return {
        "mlm": {"top1": ranking.rate(roots, asked)},
        "mnm": {"top1": ranking.rate(*leaves[:2]), "leaf": ranking.rate(*leaves[2:])},
    }


def count_right(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Tokens that are the likeliest, tokens asked for, and where labels are of leaves [B, G, L] leaves that are right, leaves.

    A leaf is right when each of its labelled tokens is. logits [..., V] of labels [...]; -100 counts nowhere. The counts are
    int64 on the device of the logits.
    """
    asked = labels != -100
    of_labels = logits.gather(-1, labels.clamp_min(0)[..., None])
    # Equal logits count against the label, and NaN too, so that a constant or a broken model is never right.
    right = ((logits >= of_labels).sum(-1) == 1) & ~logits.isnan().any(-1)
    counts = [(right & asked).sum(), asked.sum()]
    if labels.dim() == 3:
        there = asked.any(-1)
        counts += [((right | ~asked).all(-1) & there).sum(), there.sum()]
    return torch.stack(counts)


def baselines(corpus: Corpus, configuration: Configuration) -> dict[str, dict]:
    """`links` of what any encoder must beat: counts, and counts, names and the sources' words (the lexical baseline)."""
    scorers = {
        "frequency": Frequency.of(corpus.splits.train),
        "lexical baseline": _weighed(_lexical(corpus), corpus, configuration.run.seed),
    }
    return {name: links(scorer, corpus, configuration) for name, scorer in scorers.items()}


ABLATIONS = {
    "no leaf shown": {  # the graph is asked for and never read
        "objectives.mnm.mask_prob": 1.0,
        "objectives.triple.weight": 0.0,
        "encoding.leaves_per_anchor.negatives": 0,
    },
    "without H-GAT": {"model.hgat.enabled": False, "model.hgat.relation_bias": False},
    "without decay": {"model.decay.mode": "none"},
}


def variants(
    changes: dict[str, dict], configuration: Configuration, corpus: Corpus, machine: Runtime, folder: Path
) -> dict[str, dict]:
    """`links` of the same run with other values of some keys, each by its name, for as many steps; the split stays."""
    found = {}
    for name, change in changes.items():
        changed, place = override(configuration, change), folder / name.replace(" ", "_")
        trainer = experiment.train(changed, experiment.with_options(corpus, changed), machine, place)
        found[name] = links(
            encoder_scorer(LinkPredictor(trainer.model, corpus.validation), corpus), corpus, configuration
        )
    return found


def further_seeds(
    count: int, configuration: Configuration, corpus: Corpus, machine: Runtime, folder: Path
) -> dict[str, dict]:
    """`links` of the same run with the next seeds."""
    seeds = range(configuration.run.seed + 1, configuration.run.seed + 1 + count)
    found = variants({f"seed {seed}": {"run.seed": seed} for seed in seeds}, configuration, corpus, machine, folder)
    return {f"GraphMER-SE, {name}": row for name, row in found.items()}


def table(rows: dict[str, dict]) -> list[dict]:
    """MRR and hits of each model, of all triples and of those that names alone do not answer, and how far its probabilities
    are from what comes true."""
    return [
        {"model": name}
        | {metric: found["both"][metric] for metric in ("mrr", "hits@1", "hits@10")}
        | {"mrr beyond names": found["beyond_names"] and found["beyond_names"]["both"]["mrr"]}
        | {"calibration error": found["reliability"]["error"]}
        for name, found in rows.items()
    ]


def by_relation(rows: dict[str, dict]) -> list[dict]:
    """MRR of each relation, tails and heads together, the most frequent first."""
    asked = {name: found["both"]["ranks"] for name, found in next(iter(rows.values()))["relations"].items()}
    return [
        {"mrr": relation, "asked": asked[relation]}
        | {name: found["relations"][relation]["both"]["mrr"] for name, found in rows.items()}
        for relation in sorted(asked, key=lambda name: -asked[name])
    ]


def masked_table(before: dict, after: dict) -> list[dict]:
    """Masked tokens of roots (MLM) and leaves (MNM) that are right at once, by the untrained and the trained model."""
    return [
        {"task": name, "tokens": now["of"], "untrained": before[name]["top1"]["rate"], "trained": now["rate"]}
        | {"95 %": "{:.3f} to {:.3f}".format(*now["interval"])}
        for name, now in ((name, after[name]["top1"]) for name in ("mlm", "mnm"))
    ]


def answers(scorer: ranking.Scorer, corpus: Corpus, entity_id: str, *, most: int = 3) -> list[dict]:
    """The likeliest tails of an entity for each relation that it may have; * marks what the graph says."""
    entity, rows = corpus.graph.entities[entity_id], []
    true = ranking.true_answers(corpus.graph.resolved())
    for name, relation in corpus.ontology.relations.items():
        if not relation.canonical or entity.type not in relation.domain:
            continue
        candidates = ranking.admitted(corpus.graph, corpus.ontology, [name])[name][ranking.TAIL]
        scores_X = scorer([entity_id], name, candidates, ranking.TAIL)[0] if candidates else np.zeros(0)
        best = [candidates[place] for place in np.argsort(-scores_X, kind="stable")[:most]]
        known = true.get((ranking.TAIL, name, entity_id), set())
        rows.append(
            {"relation": name} | {f"{rank}": f"{one}{'*' * (one in known)}" for rank, one in enumerate(best, 1)}
        )
    return rows


@torch.no_grad()
def same_states(one: GraphMERForPreTraining, other: GraphMERForPreTraining, corpus: Corpus) -> float:
    """Largest difference of root states of two models on the first sequences, on the CPU in fp32."""
    collate = LeafyChainCollator(corpus.validation)
    batch = collate([corpus.validation[index] for index in range(min(2, len(corpus.validation)))])
    first, second = (cpu_copy(model).eval()(**batch).root_states for model in (one, other))
    return float((first - second).abs().max())
