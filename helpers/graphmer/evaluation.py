"""What a trained GraphMER encoder is worth: held-out links beside baselines, the other tasks, and tables of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from helpers.cpu_copy import cpu_copy
from helpers.graphmer import code_search, experiment, kge, ranking, tasks
from helpers.graphmer.baselines import Frequency, strings
from helpers.graphmer.batches import LeafyChainCollator
from helpers.graphmer.configuration import Configuration, override
from helpers.graphmer.experiment import Corpus
from helpers.graphmer.link_prediction import LinkPredictor
from helpers.graphmer.mixture import Mixture
from helpers.graphmer.model import GraphMERForPreTraining
from helpers.graphmer.token_accuracy import TokenAccuracy
from helpers.graphmer.violations import violation_rates
from helpers.runtime import Runtime

SCORES_AT_ONCE = 2**26  # of queries and candidates; 256 MiB
SEARCHED, ASKED_PAIRS, VIOLATION_QUERIES = 500, 500, 200  # functions, heads, triples
KNOWLEDGE_GRAPH_EMBEDDINGS = ("transe", "distmult", "rotate")


def measure(predictor: LinkPredictor, corpus: Corpus, configuration: Configuration) -> dict:
    """Every metric of the run on held-out triples: links, and `other_tasks`."""
    scorer = both_ends(predictor, corpus)
    return {
        "links": links(scorer, corpus, configuration),
        "links_by_given_end": links(predictor, corpus, configuration),
        **other_tasks(predictor, scorer, corpus, configuration),
    }


def other_tasks(predictor: LinkPredictor, scorer: ranking.Scorer, corpus: Corpus, configuration: Configuration) -> dict:
    """Call graph, dependencies, names, code search, masked tokens and violations; `scorer` is that of both ends."""
    return {
        **_of_pairs(scorer, corpus, configuration),
        "code_search": code_search.code_search(
            _documented(corpus, configuration), code_search.by_embedding(_text_embedding(predictor.model, corpus))
        ),
        "masked": masked(predictor.model, corpus, configuration),
        "violations": violation_rates(
            predictor,
            corpus.splits,
            corpus.graph,
            corpus.ontology,
            max_queries=VIOLATION_QUERIES,
            seed=configuration.run.seed,
            chunk=SCORES_AT_ONCE,
        ),
    }


def both_ends(predictor: LinkPredictor, corpus: Corpus) -> Mixture:
    """The encoder's scores of a triple from the documents of both ends, weighed on validation."""
    return predictor.both_ends(corpus.splits, corpus.graph, corpus.ontology)


def links(scorer: ranking.Scorer, corpus: Corpus, configuration: Configuration, part: str = "test") -> dict:
    """`ranking.evaluate` of any scorer on the triples that the configuration asks for."""
    return ranking.evaluate(
        scorer,
        corpus.splits,
        corpus.graph,
        corpus.ontology,
        part=part,
        max_queries=configuration.evaluation.max_triples,
        seed=0,  # the same triples whatever the run's seed
        chunk=SCORES_AT_ONCE,
    )


def _of_pairs(scorer: ranking.Scorer, corpus: Corpus, configuration: Configuration) -> dict:
    """Call graph, dependencies and disambiguation, where the held-out parts have such triples."""
    found = {}
    for name, relations in (("call_graph", tasks.CALLS), ("dependencies", tasks.IMPORTS)):
        if all(_has(part, relations) for part in (corpus.splits.validation, corpus.splits.test)):
            validation, test = (
                tasks.candidate_pairs(
                    corpus.splits,
                    corpus.graph,
                    corpus.ontology,
                    relations=relations,
                    part=part,
                    max_heads=ASKED_PAIRS,
                )
                for part in ("validation", "test")
            )
            found[name] = tasks.pair_f1(scorer, validation, test)
    if _has(corpus.splits.test, tasks.CALLS):
        try:
            mentions = tasks.ambiguous_mentions(
                corpus.splits, corpus.graph, corpus.ontology, text=corpus.documents.text
            )
        except ValueError:  # no name that two entities share
            return found
        found["disambiguation"] = tasks.disambiguation(scorer, mentions)
    return found


def _has(triples: Iterable, relations: tuple[str, ...]) -> bool:
    return any(triple.relation in relations for triple in triples)


def _documented(corpus: Corpus, configuration: Configuration) -> list[code_search.Function]:
    heads = {triple.head for triple in corpus.splits.test}
    return code_search.documented_functions(
        corpus.graph, corpus.documents.text, heads, functions=SEARCHED, seed=configuration.run.seed
    )


def _text_embedding(model: GraphMERForPreTraining, corpus: Corpus) -> Callable[[list[str]], np.ndarray]:
    model = cpu_copy(model) if model.device.type == "xla" else model

    @torch.no_grad()
    def embed(texts: list[str]) -> np.ndarray:
        found = []
        for first in range(0, len(texts), 32):
            ids = corpus.tokenizer(
                texts[first : first + 32],
                truncation=True,
                max_length=corpus.train.roots,
                padding=True,
                add_special_tokens=False,
                return_tensors="pt",
            )["input_ids"]
            found.append(model.eval().entities(ids.to(model.device)).float().cpu().numpy())
        return np.concatenate(found)

    return embed


@torch.no_grad()
def masked(model: GraphMERForPreTraining, corpus: Corpus, configuration: Configuration) -> dict:
    """Accuracy on masked roots (MLM) and masked leaves (MNM) of at most 64 validation batches."""
    model = (cpu_copy(model) if model.device.type == "xla" else model).eval()
    chains, size = corpus.validation, configuration.evaluation.micro_batch_size
    collate = LeafyChainCollator(chains)
    roots, leaves = TokenAccuracy(), TokenAccuracy(leaves=True)
    for first in range(0, min(len(chains), 64 * size), size):
        batch = collate([chains[index] for index in range(first, min(first + size, len(chains)))])
        batch = {name: value.to(model.device) for name, value in batch.items()}
        roots.update(model.root_logits(**batch), batch["mlm_labels"])
        leaves.update(model.leaf_logits(**batch), batch["mnm_labels"])
    return {"mlm": roots.summary(), "mnm": leaves.summary()}


def with_strings(predictor: LinkPredictor, corpus: Corpus, configuration: Configuration) -> dict:
    """`links` of the encoder and the string baseline together, weighed on validation."""
    return links(_strings(corpus, configuration, predictor.ends()), corpus, configuration)


def _strings(corpus: Corpus, configuration: Configuration, also: dict[str, ranking.Scorer]) -> ranking.Scorer:
    options = {"text": corpus.documents.text, "frequency": True, "also": also, "seed": configuration.run.seed}
    return strings(corpus.splits, corpus.graph, corpus.ontology, **options)


def baselines(corpus: Corpus, configuration: Configuration) -> dict[str, dict]:
    """`links` of what any encoder must beat: counts, strings with the sources' words, and three embeddings of the graph."""
    seed = configuration.run.seed
    scorers: dict[str, Callable[[], ranking.Scorer]] = {
        "frequency": lambda: Frequency(corpus.splits.train),
        "strings": lambda: _strings(corpus, configuration, {}),
        **{
            name: (lambda name=name: kge.train_embeddings(corpus.splits.train, model=name, seed=seed))
            for name in KNOWLEDGE_GRAPH_EMBEDDINGS
        },
    }
    return {name: links(scorer(), corpus, configuration) for name, scorer in scorers.items()}


ABLATIONS = {
    "no leaf shown": {  # the graph is asked for and never read
        "objectives.mnm.mask_prob": 1.0,
        "objectives.triple.weight": 0.0,
        "encoding.leaves_per_anchor.negatives": 0,
    },
    "without H-GAT": {"model.hgat.enabled": False, "model.hgat.relation_bias": False},
    "without decay": {"model.decay.mode": "none"},
}


def ablations(configuration: Configuration, corpus: Corpus, machine: Runtime, folder: Path) -> dict[str, dict]:
    """`links` of the same encoder with one part left out, trained for as many steps."""
    found = {}
    for name, changes in ABLATIONS.items():
        changed = override(configuration, changes)
        trainer = experiment.train(
            changed, experiment.with_options(corpus, changed), machine, folder / name.replace(" ", "_")
        )
        found[name] = _links_of(trainer.model, corpus, configuration)
    return found


def table(rows: dict[str, dict]) -> str:
    """Name of each model beside its MRR and hits, of all triples and of those that names alone do not answer."""
    lines = [f"{'':<28}{'MRR':>8}{'hits@1':>9}{'hits@10':>9}{'MRR beyond names':>19}"]
    for name, found in rows.items():
        both, beyond = found["both"], found["beyond_names"]
        rest = f"{beyond['both']['mrr']:19.3f}" if beyond else f"{'-':>19}"
        lines.append(f"{name:<28}{both['mrr']:8.3f}{both['hits@1']:9.3f}{both['hits@10']:9.3f}{rest}")
    return "\n".join(lines)


def by_relation(rows: dict[str, dict]) -> str:
    """MRR of each relation, tails and heads together, the most frequent first."""
    first = next(iter(rows.values()))["relations"]
    names = sorted(first, key=lambda name: -first[name]["both"]["ranks"])
    lines = [f"{'':<18}{'asked':>7}" + "".join(f"{row[:16]:>18}" for row in rows)]
    for name in names:
        values = "".join(f"{found['relations'][name]['both']['mrr']:18.3f}" for found in rows.values())
        lines.append(f"{name:<18}{first[name]['both']['ranks']:7}{values}")
    return "\n".join(lines)


def tasks_table(before: dict, after: dict) -> str:
    """The other tasks, each with its 95 % interval and what chance or saying yes to all would give."""
    lines = []
    for name, value, chance in (
        ("call_graph", "f1", "all_true"),
        ("dependencies", "f1", "all_true"),
        ("disambiguation", "top1", "chance"),
        ("code_search", "mrr@10", "chance"),
    ):
        if found := after.get(name):
            low, high = found["interval"]
            lines.append(
                f"{name:<16}{value:<8}{found[value]:.3f} ({low:.3f} to {high:.3f}), {chance} {found[chance]:.3f}"
            )
    for name in ("mlm", "mnm"):
        was, now = before[name]["top1"], after["masked"][name]["top1"]
        lines.append(f"{name:<16}{'top1':<8}{now['rate']:.3f}, untrained {was['rate']:.3f}, of {now['of']} tokens")
    found = after["violations"]["any"]
    lines.append(f"{'violations':<16}{'rate':<8}{found['rate']:.3f} of {found['of']} first answers")
    return "\n".join(lines)


def answers(predictor: LinkPredictor, corpus: Corpus, entity_id: str, *, most: int = 3) -> str:
    """The likeliest tails of an entity for each relation that it may have; * marks what the graph says."""
    entity, lines = corpus.graph.entities[entity_id], [entity_id]
    true = ranking.true_answers(corpus.graph.resolved())
    for name, relation in corpus.ontology.relations.items():
        if not relation.canonical or entity.type not in relation.domain:
            continue
        candidates = ranking.admitted(corpus.graph, corpus.ontology, [name])[name][ranking.TAIL]
        scores_X = predictor.tails([entity_id], name, candidates)[0] if candidates else np.zeros(0)
        best = [candidates[place] for place in np.argsort(-scores_X, kind="stable")[:most]]
        known = true.get((ranking.TAIL, name, entity_id), set())
        lines.append(f"  {name:<16}" + ", ".join(f"{one}{'*' if one in known else ''}" for one in best))
    return "\n".join(lines)


@torch.no_grad()
def same_states(one: GraphMERForPreTraining, other: GraphMERForPreTraining, corpus: Corpus) -> float:
    """Largest difference of root states of two models on the first sequences, on the CPU in fp32."""
    collate = LeafyChainCollator(corpus.validation)
    batch = collate([corpus.validation[index] for index in range(min(2, len(corpus.validation)))])
    first, second = (cpu_copy(model).eval()(**batch).root_states for model in (one, other))
    return float((first - second).abs().max())


def further_seeds(
    count: int, configuration: Configuration, corpus: Corpus, machine: Runtime, folder: Path
) -> dict[str, dict]:
    """`links` of the same run with the next seeds; the split stays."""
    found = {}
    for seed in range(configuration.run.seed + 1, configuration.run.seed + 1 + count):
        changed = override(configuration, {"run.seed": seed})
        trainer = experiment.train(changed, experiment.with_options(corpus, changed), machine, folder / f"seed_{seed}")
        found[f"GraphMER-SE, seed {seed}"] = _links_of(trainer.model, corpus, configuration)
    return found


def _links_of(model: GraphMERForPreTraining, corpus: Corpus, configuration: Configuration) -> dict:
    return links(both_ends(LinkPredictor(model, corpus.validation), corpus), corpus, configuration)
