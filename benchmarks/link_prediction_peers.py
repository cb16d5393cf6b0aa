"""What embeddings of the graph alone reach: PyKEEN's TransE, DistMult and RotatE beside counts, filtered MRR on two splits.

    pip install pykeen
    python benchmarks/link_prediction_peers.py                # the sample graph, CPU
    python benchmarks/link_prediction_peers.py --epochs 5 --max-queries 500

Embeddings know only entities that they were trained on. On packages held out, as the notebook has them, that is none of the
given ends and few of the answers, so they are no baseline there. On the split of their literature, triples drawn at random
whose ends training has elsewhere, they are; but that split leaks what is mirrored and is no measure of a code model. Prints
one line of JSON a comparison and writes all of them to docs/results.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.graph.knowledge_graph import KnowledgeGraph
from helpers.graphmer.graph.ontology import read_ontology
from helpers.graphmer.graph.splits import Splits, split_by_module
from helpers.graphmer.links.baselines import Frequency
from helpers.graphmer.links.ranking import evaluate

MODELS = ("TransE", "DistMult", "RotatE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-source", default="sample", help='"sample" or a folder')
    parser.add_argument("--unit", default="package", help="what is held out whole: module or package")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--width", type=int, default=128, help="real numbers an entity")
    parser.add_argument("--max-queries", type=int, default=2000, help="test triples, each in both directions; 0 is all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=report.ROOT / "docs/results/link_prediction_peers_cpu.json")
    arguments = parser.parse_args()
    graph, ontology = load_graph(arguments.data_source), read_ontology()
    machine, results = report.machine("cpu", ("pykeen",)), []
    held_out = {
        f"{arguments.unit}s held out": split_by_module(graph, seed=arguments.seed, unit=arguments.unit),
        "triples drawn at random": transductive(graph, seed=arguments.seed),
    }
    for split, splits in held_out.items():
        for model in ("frequency", *MODELS):
            begin = time.process_time()
            scorer = (
                Frequency.of(splits.train)
                if model == "frequency"
                else Embeddings(model, splits, arguments.epochs, arguments.width, arguments.seed)
            )
            seconds = round(time.process_time() - begin, 1)
            found = evaluate(scorer, splits, graph, ontology, max_queries=arguments.max_queries, seed=arguments.seed)
            kept = {key: found[key] for key in ("both", "tail", "head", "beyond_names")}
            results.append({"comparison": model, "split": split, "seconds": seconds, "result": kept})
            print(json.dumps(results[-1]), flush=True)
    report.write(
        arguments.output,
        machine,
        arguments={name: str(value) for name, value in vars(arguments).items() if name != "output"},
        triples={
            split: {part: len(getattr(splits, part)) for part in ("train", "validation", "test")}
            for split, splits in held_out.items()
        },
        comparisons=results,
    )


def transductive(graph: KnowledgeGraph, *, seed: int, held_out: float = 0.1) -> Splits:
    """Test triples drawn at random, both ends of which another triple keeps in training."""
    triples = list(graph.resolved())
    random.Random(seed).shuffle(triples)
    left = Counter(end for triple in triples for end in triple[::2])
    test, train = [], []
    for triple in triples:
        if len(test) < held_out * len(triples) and min(left[end] for end in triple[::2]) > 1 + (triple[0] == triple[2]):
            test.append(triple)
            left.subtract(triple[::2])
        else:
            train.append(triple)
    return Splits(tuple(sorted(train)), (), tuple(sorted(test)), {})


class Embeddings:
    """PyKEEN's model with its own defaults of loss and negatives, as a scorer over our candidates."""

    def __init__(self, model: str, splits: Splits, epochs: int, width: int, seed: int):
        import torch
        from pykeen.models import model_resolver
        from pykeen.training import SLCWATrainingLoop
        from pykeen.triples import TriplesFactory

        factory = TriplesFactory.from_labeled_triples(np.array([tuple(triple) for triple in splits.train], dtype=str))
        made = model_resolver.make(
            model,
            triples_factory=factory,
            random_seed=seed,
            # RotatE's numbers are complex: half of them are as many real ones.
            embedding_dim=width // 2 if model == "RotatE" else width,
        )
        optimizer = torch.optim.Adam(made.parameters(), lr=0.01)
        loop = SLCWATrainingLoop(model=made, triples_factory=factory, optimizer=optimizer)
        loop.train(triples_factory=factory, num_epochs=epochs, batch_size=1024, use_tqdm=False)
        self._torch, self._model, self._factory = torch, made.eval(), factory

    def __call__(self, queries: list[str], relation: str, candidates: list[str], direction: str) -> np.ndarray:
        """Of entities that training lacks, the lowest."""
        torch, factory = self._torch, self._factory
        relation_number = factory.relation_to_id[relation]
        known = [
            (place, factory.entity_to_id[name]) for place, name in enumerate(queries) if name in factory.entity_to_id
        ]
        columns = [
            (place, factory.entity_to_id[name]) for place, name in enumerate(candidates) if name in factory.entity_to_id
        ]
        scores_QX = np.full((len(queries), len(candidates)), -np.inf, np.float32)
        if not known or not columns:
            return scores_QX
        rows, numbers = zip(*known, strict=True)
        places, others = zip(*columns, strict=True)
        pairs = [(number, relation_number) if direction == "tail" else (relation_number, number) for number in numbers]
        with torch.inference_mode():
            score = self._model.score_t if direction == "tail" else self._model.score_h
            found = score(torch.tensor(pairs)).numpy()
        scores_QX[np.ix_(rows, places)] = found[:, others]
        return scores_QX


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
