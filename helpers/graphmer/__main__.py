"""python -m helpers.graphmer ask MODEL REPOSITORY NAME RELATION     what a saved model and the resolver say about a repository
python -m helpers.graphmer search REPOSITORY "QUESTION"              functions whose name and source fit a question best
python -m helpers.graphmer --config rtx3050 --set optimizer.lr=1e-4  checks a configuration and prints every key of it

`python -m helpers.graphmer ask outputs/graphmer_se/model my/repository package.module.function called_by`

To train from the shell, run the notebook: `python -m helpers.batch notebooks/graphmer_se.ipynb --output-dir runs
config=mine.yaml max_steps=1000 data_source=my/repository`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from helpers.graphmer.configuration import PROFILES, override, read_configuration, to_yaml
from helpers.graphmer.parameters import changed
from helpers.show import tables


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints answers or a configuration; what cannot be asked, and a configuration that cannot be, exit with 2."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    try:
        asked.action(asked)
    except (ValueError, FileNotFoundError, ImportError) as error:
        parser.error(str(error))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m helpers.graphmer")
    parser.add_argument("--config", default="", help=f"YAML file, or a profile: {', '.join(PROFILES)}")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one key with another value")
    parser.set_defaults(action=_config)
    commands = parser.add_subparsers(metavar="ask | search")
    ask = commands.add_parser("ask", help="what a saved model and the resolver say about a repository")
    search = commands.add_parser("search", help="functions whose name and source fit a question best")
    ask.add_argument("model", help="folder of a saved model: `model` in the output folder of a run")
    for command, action in ((ask, _ask), (search, _search)):
        command.add_argument("repository", help="folder of Python and Java sources")
        command.add_argument("--most", type=int, default=5, help="answers, or those beyond what the resolver knows")
        command.add_argument("--cache", help="folder for what is read of repositories; default ~/.cache/graphmer")
        command.set_defaults(action=action)
    ask.add_argument("name", help="package.module.function, or the end of it where no other has the same")
    ask.add_argument("relation", help="calls, called_by, imports, overrides ...")
    search.add_argument("question", help="what the function does, in words")
    return parser


def _config(asked: argparse.Namespace) -> None:
    if not asked.config:
        raise ValueError("--config: is missing; give a YAML file or a profile, or a command: ask, search")
    print(to_yaml(override(read_configuration(asked.config), changed("; ".join(asked.set)))), end="")


def _search(asked: argparse.Namespace) -> None:
    from helpers.graphmer.searching import search

    found = search(asked.repository, asked.question, most=asked.most, cache=asked.cache)
    tables.show([each._asdict() for each in found], asked.question)


def _ask(asked: argparse.Namespace) -> None:
    from helpers.graphmer.asking import GraphMER

    model = GraphMER.load(asked.model, asked.cache)
    answers = model.ask(asked.repository, asked.name, asked.relation, most=asked.most)
    tables.show([answer._asdict() for answer in answers], f"{asked.name} {asked.relation}")


if __name__ == "__main__":
    sys.exit(main())
