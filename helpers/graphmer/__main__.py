"""python -m helpers.graphmer ask REPOSITORY NAME called_by|calls|impact   what the sources prove, without a model
python -m helpers.graphmer search REPOSITORY "QUESTION"                  functions and classes that fit a question best

To train from the shell, run the notebook: `python -m helpers.batch notebooks/graphmer_se.ipynb --output-dir runs
config=mine.yaml max_steps=1000 data_source=my/repository`.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import chain


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints answers. What cannot be asked ends with exit code 2."""
    parser = _parser()
    asked = parser.parse_args(arguments)
    try:
        asked.action(asked)
    except (ValueError, FileNotFoundError, ImportError) as error:
        parser.error(str(error))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m helpers.graphmer")
    commands = parser.add_subparsers(metavar="ask | search", required=True)
    ask = commands.add_parser("ask", help="what the sources prove about a function or class, without a model")
    search = commands.add_parser("search", help="functions and classes that fit a question best")
    for command, action, most in ((ask, _ask, 20), (search, _search, 5)):
        command.add_argument("repository", help="folder of Python and Java sources")
        command.add_argument("--most", type=int, default=most, help=f"answers of each status; default {most}")
        command.set_defaults(action=action)
    ask.add_argument("name", help="package.module.function, or the end of it where no other has the same")
    ask.add_argument("relation", help="called_by, calls or impact")
    search.add_argument("question", help="what the function does, in words")
    search.add_argument(
        "--model", help="folder of a sentence encoder, such as `search_model` of a run; else BM25 alone"
    )
    return parser


def _search(asked: argparse.Namespace) -> None:
    from .search import search

    found = search(asked.repository, asked.question, model=asked.model, most=asked.most)
    _show([each._asdict() for each in found], asked.question)


def _ask(asked: argparse.Namespace) -> None:
    from .ask import Asked

    questions = Asked(asked.repository)
    entity = questions.entity(asked.name)
    answers = questions.answers(entity.id, asked.relation)
    count = Counter(each.status for each in answers)
    of_each = [[each._asdict() for each in answers if each.status == status][: asked.most] for status in count]
    rows = [*chain.from_iterable(of_each)]
    found = ", ".join(f"{number:,} {status}" for status, number in count.items()) or "nothing that the sources say"
    _show(rows, f"{entity.id} {asked.relation}: {found}")
    if failed := questions.graph.manifest["failed"]:
        _show(failed[: asked.most], f"{len(failed):,} files could not be read, and what they call is not here")


def _show(rows: Sequence[dict], caption: str) -> None:
    """Prints rows as a table. `helpers.show` would load pandas, which takes longer than an answer from a kept graph."""
    lines = [list(map(str, row)) for row in (rows[0], *(row.values() for row in rows))] if rows else []
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(caption)
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
