"""Lines for the person who watches, and whether there is one."""

import sys


def say(message: str) -> None:
    """Prints one line for the person who watches."""
    print(message, flush=True)


def in_kernel() -> bool:
    """Whether this process is a Jupyter kernel."""
    app = sys.modules.get("ipykernel.kernelapp")
    return app is not None and app.IPKernelApp.initialized()


def is_watched() -> bool:
    """Whether a person's notebook frontend is attached: papermill and nbmake run a notebook without one.

    Their client, nbclient, can be told from a frontend only by the fact that it does not allow stdin.
    """
    return in_kernel() and getattr(sys.modules["IPython"].get_ipython().kernel, "_allow_stdin", True)


def hide_bars() -> None:
    """Keeps the bars of datasets and transformers, which need a frontend, out of logs and saved notebooks."""
    import datasets
    import transformers

    if not is_watched():
        datasets.disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()
