"""The buttons that open a notebook in Colab and on Kaggle: in README.md and in each notebook's first cell."""

import tomllib
from pathlib import Path

SETTINGS = Path(__file__).resolve().parents[1] / "pyproject.toml"


def published() -> str:
    """Owner and name of the public repository on GitHub, from pyproject.toml; empty before it is published."""
    return tomllib.loads(SETTINGS.read_text(encoding="utf-8"))["tool"]["notebooks"]["published"]


def of(name: str, address: str | None = None) -> list[str]:
    """The two buttons of a notebook in Markdown.

    address: owner and name on GitHub; the published one if None. Without any there are no buttons.
    """
    address = published() if address is None else address
    if not address:
        return []
    path = f"{address}/blob/main/notebooks/{name}.ipynb"
    colab = f"https://colab.research.google.com/github/{path}"
    kaggle = f"https://kaggle.com/kernels/welcome?src=https://github.com/{path}"
    return [
        f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab})",
        f"[![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)]({kaggle})",
    ]
