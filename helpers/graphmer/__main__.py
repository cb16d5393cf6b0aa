"""python -m helpers.graphmer ask MODEL REPOSITORY NAME RELATION     what a saved model and the resolver say about a repository
python -m helpers.graphmer --config rtx3050 --set optimizer.lr=1e-4  checks a configuration and prints every key of it

`python -m helpers.graphmer ask outputs/graphmer_se/model my/repository package.module.function called_by`

To train from the shell, run the notebook: `python -m helpers.batch notebooks/graphmer_se.ipynb --output-dir runs
config=mine.yaml max_steps=1000 data_source=my/repository`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from helpers import tables
from helpers.graphmer.configuration import PROFILES, override, read_configuration, to_yaml
from helpers.graphmer.parameters import changed


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints answers or a configuration; what cannot be asked, and a configuration that cannot be, exit with 2."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    asks = arguments[:1] == ["ask"]
    parser = _ask_parser() if asks else _config_parser()
    asked = parser.parse_args(arguments[asks:])
    try:
        if asks:
            _ask(asked)
        else:
            print(to_yaml(override(read_configuration(asked.config), changed("; ".join(asked.set)))), end="")
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    return 0


def _config_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m helpers.graphmer", epilog="`ask --help`: asks a saved model")
    parser.add_argument("--config", required=True, help=f"YAML file, or a profile: {', '.join(PROFILES)}")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one key with another value")
    return parser


def _ask_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m helpers.graphmer ask")
    parser.add_argument("model", help="folder of a saved model: `model` in the output folder of a run")
    parser.add_argument("repository", help="folder of Python and Java sources")
    parser.add_argument("name", help="package.module.function, or the end of it where no other has the same")
    parser.add_argument("relation", help="calls, called_by, imports, overrides ...")
    parser.add_argument("--most", type=int, default=5, help="answers beyond what the resolver knows")
    parser.add_argument("--cache", help="folder for what is read of repositories; default ~/.cache/graphmer")
    return parser


def _ask(asked: argparse.Namespace) -> None:
    from helpers.graphmer.asking import GraphMER

    model = GraphMER.load(asked.model, asked.cache)
    answers = model.ask(asked.repository, asked.name, asked.relation, most=asked.most)
    tables.show([answer._asdict() for answer in answers], f"{asked.name} {asked.relation}")


if __name__ == "__main__":
    sys.exit(main())
