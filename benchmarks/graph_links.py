"""Held-out links by GraphMER-SE, alone and with the lexical baseline, for several seeds on one split of the sample.

python benchmarks/graph_links.py --seeds 0 1 2 --baselines --output links.json
python benchmarks/graph_links.py --seeds 0 1 2 --ablation "without H-GAT" --output without_hgat.json
python benchmarks/graph_links.py --seeds 0 1 2 --tasks --output tasks.json

The split is that of `--split`; a seed changes weights, order, masks and negatives, and `--seeds` without a number only describes
the split. Nothing is timed. A run that was interrupted goes on from its checkpoints in `--folder`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers import runtime, tables
from helpers.graphmer import evaluation, experiment
from helpers.graphmer.configuration import override, read_configuration
from helpers.graphmer.links.predictor import LinkPredictor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--split", type=int, default=0, help="seed of the held-out packages")
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--baselines", action="store_true", help="measure counts and the lexical baseline, too")
    parser.add_argument(
        "--ablation", choices=[*evaluation.ABLATIONS], help="the encoder with this part left out instead of whole"
    )
    parser.add_argument("--tasks", action="store_true", help="masked tokens and leaves instead of links")
    parser.add_argument("--folder", type=Path, default=Path("outputs/graph_links"))
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    if given.tasks and (given.ablation or given.baselines):
        parser.error("--tasks is measured of the whole encoder: leave --ablation and --baselines out")
    machine = runtime.detect(False, "auto")
    configuration = override(read_configuration(given.profile), {"run.seed": given.split})
    corpus = experiment.load_corpus("sample", configuration)
    found = {
        "data": corpus.provenance,
        "split": given.split,
        "test_triples": len(corpus.splits.test),
        "test_packages": _packages(corpus),
        "steps": configuration.run.max_steps,
        "device": machine.device_name,
        "rows": {},
    }
    encoder = f"encoder, {given.ablation}" if given.ablation else "encoder"
    for seed in given.seeds:
        changed = override(configuration, {"run.seed": seed, **evaluation.ABLATIONS.get(given.ablation, {})})
        folder = given.folder / f"{encoder}-{seed}".replace(", ", "-").replace(" ", "-")
        trainer = experiment.train(changed, experiment.with_options(corpus, changed), machine, folder)
        predictor = LinkPredictor(trainer.model, corpus.validation)
        scorer = evaluation.encoder_scorer(predictor, corpus)
        name = f"{encoder}, seed {seed}"
        if given.tasks:
            _write(found, {name: {"masked": evaluation.masked(trainer.model, corpus, configuration)}}, given.output)
            continue
        _write(found, {name: evaluation.links(scorer, corpus, configuration)}, given.output)
        if not given.ablation:
            both = evaluation.links(
                evaluation.with_lexical_baseline(predictor, corpus, configuration), corpus, configuration
            )
            _write(found, {f"encoder and lexical baseline, seed {seed}": both}, given.output)
    if given.baselines:
        _write(found, evaluation.baselines(corpus, configuration), given.output)
    if not found["rows"]:
        _write(found, {}, given.output)
    elif not given.tasks:
        tables.show(evaluation.table(found["rows"]))
        tables.show(evaluation.by_relation(found["rows"]))


def _packages(corpus: experiment.Corpus) -> dict[str, int]:
    """Test triples of each held-out package, the largest first."""
    modules = (corpus.graph.entities[triple.head].module for triple in corpus.splits.test)
    return dict(Counter(module.partition(".")[0] for module in modules).most_common())


def _write(found: dict, rows: dict, output: Path) -> None:
    found["rows"] |= rows
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{', '.join(rows) or 'the split'}: in {output}", flush=True)


if __name__ == "__main__":
    main()
