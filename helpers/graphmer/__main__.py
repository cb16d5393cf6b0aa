"""python -m helpers.graphmer --config rtx3050 --set optimizer.lr=1e-4     checks a configuration and prints every key of it

To train from the shell, run the notebook: `python -m helpers.batch notebooks/graphmer_se.ipynb --output-dir runs
config=mine.yaml max_steps=1000 data_source=my/repository`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from helpers.graphmer.configuration import PROFILES, override, read_configuration, to_yaml
from helpers.graphmer.parameters import changed


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a configuration; one that cannot be exits with 2."""
    parser = argparse.ArgumentParser(prog="python -m helpers.graphmer", description=__doc__.partition("\n")[0])
    parser.add_argument("--config", required=True, help=f"YAML file, or a profile: {', '.join(PROFILES)}")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one key with another value")
    asked = parser.parse_args(arguments)
    try:
        print(to_yaml(override(read_configuration(asked.config), changed("; ".join(asked.set)))), end="")
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
