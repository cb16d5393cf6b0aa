"""Encoders of the `cpu` profile, before and after training on the standard library, for benchmarks on packages they never saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from helpers import runtime
from helpers.graphmer import experiment
from helpers.graphmer.configuration import Configuration, override, read_configuration
from helpers.graphmer.evaluation import ABLATIONS
from helpers.graphmer.experiment import Corpus
from helpers.graphmer.graph.ontology import read_ontology
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining
from helpers.graphmer.text.documents import Documents
from helpers.graphmer.text.negatives import Relations
from helpers.graphmer.text.windows import EncodedDocuments, Windows
from helpers.graphmer.training import new_trainer

BEFORE, TRAINED = "before training", "trained"
STEPS = 200
FOLDER = Path("outputs/graph_encoders")
RELATION_EMBEDDING = "relation embedding instead of H-GAT"
VARIANTS = {
    "text only": {  # masked tokens of the code, and nothing of the graph
        "objectives.mnm.mask_prob": 1.0,
        "objectives.mnm.weight": 0.0,
        "regularizers.contrastive.enabled": False,
    },
    "without copy head": {"model.token_match": False},
    RELATION_EMBEDDING: {},  # see `_new_model`
    "without H-GAT": ABLATIONS["without H-GAT"],
    "without decay": ABLATIONS["without decay"],
    "one layer": {"model.num_layers": 1},
    "two layers": {"model.num_layers": 2},
}


def windows(tokenizer, configuration: Configuration, documents: Documents) -> Windows:
    """What an encoder of this configuration reads of a graph's documents."""
    encoding = configuration.encoding
    roots, _ = configuration.shape(configuration.stages()[0][1])
    encoded = EncodedDocuments(
        documents,
        tokenizer,
        roots=roots,
        leaf_tokens=encoding.leaf_tokens,
        head_tokens=encoding.max_head_tokens,
        entity_tokens=encoding.entity_tokens,
        windows=encoding.windows_per_document,
    )
    return Windows(encoded, Relations(read_ontology()), roots)


class Encoders:
    """A model for each seed; the packages that training holds out of the standard library are those of seed 0 for all.

    Training goes on from its checkpoints in `folder`, so that further benchmarks have the same weights at once.
    """

    def __init__(self, steps: int, folder: Path = FOLDER):
        self.steps, self.folder = steps, folder
        self.configuration = override(read_configuration("cpu"), {"run.seed": 0, "run.max_steps": steps})
        self.corpus: Corpus = experiment.load_corpus("sample", self.configuration)

    def of(
        self, seed: int, before: bool = True, variants: Sequence[str] = ()
    ) -> Iterator[tuple[str, Callable[[], GraphMERForPreTraining]]]:
        """Names and what makes the models: before training if wanted, trained, and trained as each of these `VARIANTS`."""
        if before:
            configuration = self.configured(seed)
            corpus = experiment.with_options(self.corpus, configuration)
            yield BEFORE, lambda: experiment.new_model(configuration, corpus).eval()
        yield TRAINED, lambda: self._trained(seed).eval()
        for variant in variants:
            yield f"{TRAINED}, {variant}", lambda variant=variant: self._trained(seed, variant).eval()

    def configured(self, seed: int) -> Configuration:
        return override(self.configuration, {"run.seed": seed})

    def _trained(self, seed: int, variant: str = "") -> GraphMERForPreTraining:
        configuration = override(self.configured(seed), VARIANTS.get(variant, {}))
        corpus, machine = experiment.with_options(self.corpus, configuration), runtime.detect(False, "fp32")
        model = experiment.new_model(configuration, corpus)
        if variant == RELATION_EMBEDDING:  # of the fusion W_r(...) + b_r the vector b_r alone
            model.encoder.hgat.weight.requires_grad_(False).zero_()
        plan = experiment.make_plan(configuration, model, corpus, machine)
        folder = self.folder / f"{self.steps}_steps_seed{seed}{variant and '_' + variant.replace(' ', '_')}"
        trainer = new_trainer(model, corpus.train, corpus.validation, configuration, plan, machine, folder)
        trainer.train(resume_from_checkpoint=True)
        return trainer.model
