"""Lines for the person who watches."""

import functools


def say(message: str) -> None:
    """Prints one line at once, also from a pipe."""
    print(message, flush=True)


say_once = functools.cache(say)


def hide_bars() -> None:
    """Keeps the bars of datasets and transformers out of logs and saved notebooks."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()
