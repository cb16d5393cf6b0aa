"""Encoders of the `cpu` profile, before and after training on the standard library, for benchmarks on packages they never saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from helpers import runtime
from helpers.graphmer import experiment
from helpers.graphmer.configuration import Configuration, override, read_configuration
from helpers.graphmer.experiment import Corpus
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining

BEFORE, TRAINED = "before training", "trained"
STEPS = 200
FOLDER = Path("outputs/graph_encoders")


class Encoders:
    """A model for each seed; the packages that training holds out of the standard library are those of seed 0 for all.

    Training goes on from its checkpoints in `folder`, so that further benchmarks have the same weights at once.
    """

    def __init__(self, steps: int, folder: Path = FOLDER):
        self.steps, self.folder = steps, folder
        self.configuration = override(read_configuration("cpu"), {"run.seed": 0, "run.max_steps": steps})
        self.corpus: Corpus = experiment.load_corpus("sample", self.configuration)

    def of(self, seed: int, before: bool = True) -> Iterator[tuple[str, Callable[[], GraphMERForPreTraining]]]:
        """Names of both, or of the trained one, and what makes them."""
        configuration = self.configured(seed)
        corpus = experiment.with_options(self.corpus, configuration)
        if before:
            yield BEFORE, lambda: experiment.new_model(configuration, corpus).eval()
        yield TRAINED, lambda: self._trained(configuration, corpus).eval()

    def configured(self, seed: int) -> Configuration:
        return override(self.configuration, {"run.seed": seed})

    def _trained(self, configuration: Configuration, corpus: Corpus) -> GraphMERForPreTraining:
        folder = self.folder / f"{self.steps}_steps_seed{configuration.run.seed}"
        return experiment.train(configuration, corpus, runtime.detect(False, "fp32"), folder).model
