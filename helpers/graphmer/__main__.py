"""python -m helpers.graphmer train --config rtx3050 --steps 1000 --data my/repository --output outputs/graphmer"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains as configured, for exactly `--steps` optimizer steps, or shows a configuration. Errors of input exit with 2."""
    asked = _parser().parse_args(arguments)
    try:
        return {"train": _train, "config": _config}[asked.command](asked)
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m helpers.graphmer", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("train", "train and evaluate"), ("config", "check a configuration and print every key of it")):
        command = commands.add_parser(name, help=what)
        command.add_argument(
            "--config", required=True, help="YAML file, or a profile: cpu, t4, rtx3050, a100, tpu_v5e_8"
        )
        command.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="one key with another value"
        )
    train = commands.choices["train"]
    train.add_argument("--steps", type=int, default=0, help="optimizer steps, exactly; 0: as configured")
    train.add_argument(
        "--data", default="sample", help='folder of sources or of triples; "sample": the standard library'
    )
    train.add_argument("--output", type=Path, required=True, help="folder of the run; one that is there goes on")
    train.add_argument("--fresh", action="store_true", help="do not go on from a checkpoint in --output")
    return parser


def _configuration(asked: argparse.Namespace):
    from helpers.graphmer.configuration import override, read_configuration
    from helpers.graphmer.parameters import changed

    return override(read_configuration(asked.config), changed("; ".join(asked.set)))


def _config(asked: argparse.Namespace) -> int:
    from helpers.graphmer.configuration import to_yaml

    print(to_yaml(_configuration(asked)), end="")
    return 0


def _train(asked: argparse.Namespace) -> int:
    from helpers.graphmer.configuration import override, to_yaml

    if asked.steps < 0:
        raise ValueError(f"--steps {asked.steps}: must be at least 1, or 0 for the configuration's")
    configuration = _configuration(asked)
    if asked.steps:
        configuration = override(configuration, {"run.max_steps": asked.steps})
    if configuration.hardware.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from helpers import run_folder, runtime

    machine = runtime.detect(configuration.hardware.device == "tpu", configuration.run.mixed_precision)
    print(machine)
    from helpers.graphmer import evaluation, experiment  # loads transformers, which must know the device before
    from helpers.graphmer.link_prediction import LinkPredictor

    identity = {"data_source": asked.data, "configuration": to_yaml(configuration)}
    folder = run_folder.claim(str(asked.output), "graphmer_se", identity, resume=not asked.fresh)
    corpus = experiment.load_corpus(asked.data, configuration)
    run_folder.same_data(folder, corpus.source)
    trainer = experiment.train(configuration, corpus, machine, folder, resume=not asked.fresh)
    trainer.save_model(str(folder / "model"))
    corpus.tokenizer.save_pretrained(folder / "model")
    found = evaluation.measure(LinkPredictor(trainer.model, corpus.validation), corpus, configuration)
    results = {
        "notebook": "graphmer_se",
        "seed": configuration.run.seed,
        "runtime": machine.results(),
        **trainer.results(),
        "data": {"source": corpus.source, "train_examples": len(corpus.train), "eval_examples": len(corpus.validation)},
        "eval": {"before": {}, "after": found, "baselines": {}},
        "artifacts": {"model": "model"},
    }
    print(evaluation.table({"GraphMER-SE": found["links"]}))
    print(run_folder.write_results(folder, results).resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
