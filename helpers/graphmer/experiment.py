"""The steps of a GraphMER run: graph to sequences, model, plan, trainer. `evaluation.py` says what it is worth."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast, set_seed

from helpers.data.data_source import DataSource, located
from helpers.graphmer.configuration import Configuration
from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.graph.knowledge_graph import TRIPLES, KnowledgeGraph
from helpers.graphmer.graph.ontology import ONTOLOGY, Ontology, read_ontology
from helpers.graphmer.graph.splits import Splits, split_by_module
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining
from helpers.graphmer.text.chains import LeafyChains
from helpers.graphmer.text.documents import Documents
from helpers.graphmer.text.negatives import Relations
from helpers.graphmer.text.tokenizer import break_tokens, separator_tokens, train_tokenizer
from helpers.graphmer.text.windows import EncodedDocuments
from helpers.graphmer.training import GraphTrainer, new_trainer, phase_steps
from helpers.graphmer.workload import run_recipe, workload
from helpers.machine.runtime import Runtime
from helpers.parameters import SAMPLE
from helpers.plan import settings as planner
from helpers.plan.settings import Plan


@dataclass(frozen=True)
class Corpus(DataSource):
    """A graph, what of it is held out, and the sequences of both; the digest is of graph and code."""

    graph: KnowledgeGraph
    ontology: Ontology
    splits: Splits
    documents: Documents
    tokenizer: PreTrainedTokenizerFast
    train: LeafyChains
    validation: LeafyChains

    @property
    def relations(self) -> Relations:
        return self.train.relations


def load_corpus(data_source: str, configuration: Configuration) -> Corpus:
    """Graph, ontology report, splits, a tokenizer trained on the training modules' code, and sequences.

    Raises what `load_graph`, `read_ontology`, the splits and `LeafyChains` do.
    """
    data_source = located(data_source)
    graph, ontology = load_graph(data_source), read_ontology(_own_ontology(data_source))
    evaluation, encoding, seed = configuration.evaluation, configuration.encoding, configuration.run.seed
    splits = split_by_module(graph, seed=seed, unit=evaluation.unit, held_out=evaluation.held_out)
    documents = Documents.read(graph, data_source)
    tokenizer = train_tokenizer(_training_texts(graph, splits, documents), encoding.vocab_size)
    encoded = EncodedDocuments(
        documents,
        tokenizer,
        roots=max(configuration.shape(length)[0] for _, length in configuration.stages()),
        leaf_tokens=encoding.leaf_tokens,
        head_tokens=encoding.max_head_tokens,
        entity_tokens=encoding.entity_tokens,
        windows=encoding.windows_per_document,
    )
    train, validation = _chains(splits, encoded, Relations(ontology), configuration)
    return Corpus(
        name=data_source if data_source == SAMPLE else Path(data_source).resolve().name,
        sha256=_digest(graph, documents),
        graph=graph,
        ontology=ontology,
        splits=splits,
        documents=documents,
        tokenizer=tokenizer,
        train=train,
        validation=validation,
    )


def _own_ontology(data_source: str) -> Path | None:
    """`ontology.toml` beside the triples of a written graph, where it is; sources have the relations of the default one."""
    folder = Path(data_source).expanduser()
    return folder / ONTOLOGY if (folder / TRIPLES).is_file() and (folder / ONTOLOGY).is_file() else None


def with_options(corpus: Corpus, configuration: Configuration) -> Corpus:
    """The same graph and tokens in sequences of another configuration."""
    train, validation = _chains(corpus.splits, corpus.train.encoded, corpus.relations, configuration)
    return dataclasses.replace(corpus, train=train, validation=validation)


def _chains(
    splits: Splits, encoded: EncodedDocuments, relations: Relations, configuration: Configuration
) -> tuple[LeafyChains, LeafyChains]:
    """Of training and of validation; all other triples are known, since as wrong tails they would be taught to be false."""
    options = _options(configuration)
    return (
        LeafyChains(splits.train, encoded, relations, known=(*splits.validation, *splits.test), **options),
        LeafyChains(splits.validation, encoded, relations, known=(*splits.train, *splits.test), **options),
    )


def _digest(graph: KnowledgeGraph, documents: Documents) -> str:
    digest = hashlib.sha256(graph.digest().encode())
    for text in documents.sources():
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()


def _training_texts(graph: KnowledgeGraph, splits: Splits, documents: Documents) -> Iterator[str]:
    heads = {triple.head for triple in splits.train}
    modules = {graph.entities[head].module for head in heads}
    yield from documents.sources(modules)
    yield from sorted(heads)


def _options(configuration: Configuration) -> dict:
    """What `LeafyChains` takes from a configuration; the length is that of the first stage."""
    encoding, objectives = configuration.encoding, configuration.objectives
    roots, leaves = configuration.shape(configuration.stages()[0][1])
    return {
        "roots": roots,
        "leaves": leaves,
        "mask_prob": objectives.mlm.mask_prob,
        "span_mask_identifiers": objectives.mlm.span_mask_identifiers,
        "leaf_mask_prob": objectives.mnm.mask_prob,
        "positives": encoding.leaves_per_anchor.positive,
        "negatives": encoding.leaves_per_anchor.negatives,
        "type_consistent_negatives": objectives.mnm.type_consistent_negatives,
        "hard_negatives": objectives.mnm.hard_negatives,
        "pack": configuration.training_data.pack_sequences,
        "seed": configuration.run.seed,
    }


def new_model(configuration: Configuration, corpus: Corpus) -> GraphMERForPreTraining:
    """An untrained model; its weights follow from `run.seed`."""
    set_seed(configuration.run.seed)
    properties = corpus.relations.properties() | {
        "separator_ids": separator_tokens(corpus.tokenizer),
        "break_ids": break_tokens(corpus.tokenizer),
    }
    config = configuration.graphmer_config(len(corpus.tokenizer), properties.pop("num_relations"), **properties)
    return GraphMERForPreTraining(config)


def make_plan(configuration: Configuration, model: GraphMERForPreTraining, corpus: Corpus, machine: Runtime) -> Plan:
    """The configuration as a plan; nothing is chosen that it says.

    Raises ValueError: the configuration asks for another device, or for chips that are not there.
    """
    recipe = run_recipe(configuration, len(corpus.train), machine.device_count)
    wanted = configuration.hardware.device
    kind = {"auto": machine.kind, "tpu": "xla"}.get(wanted, wanted)
    if kind != machine.kind:
        raise ValueError(
            f"hardware.device={wanted!r}: this run is on {machine.device_name} ({machine.kind}); choose that runtime, "
            "or give 'auto'"
        )
    plan = planner.plan(recipe, workload(configuration, model), machine)
    own: dict[str, int | str] = {}
    if configuration.hardware.num_workers:
        own["dataloader_workers"] = configuration.hardware.num_workers
    if configuration.optimizer.name != "adamw":
        own["optimizer"] = configuration.optimizer.name
    reasons = {name: reason.replace("the recipe's", "the configuration's") for name, reason in plan.reasons.items()}
    reasons |= dict.fromkeys(own, "the configuration's")
    if not configuration.run.max_steps:
        reasons["max_steps"] = f"{configuration.run.epochs} passes over {len(corpus.train):,} sequences"
    return dataclasses.replace(plan, **own, reasons=reasons)


def phases(configuration: Configuration, plan: Plan) -> list[tuple[int, int]]:
    """Steps and tokens of a sequence of each length of the curriculum, for the forecast."""
    begins, lengths = zip(*configuration.stages(), strict=True)
    steps = phase_steps(begins, plan.max_steps)
    return [(count, length) for count, length in zip(steps, lengths, strict=True) if count]


def train(
    configuration: Configuration,
    corpus: Corpus,
    machine: Runtime,
    folder: Path,
) -> GraphTrainer:
    """A new model, trained as configured, from its last checkpoint in `folder`; the trainer that holds it."""
    model = new_model(configuration, corpus)
    plan = make_plan(configuration, model, corpus, machine)
    trainer = new_trainer(model, corpus.train, corpus.validation, configuration, plan, machine, folder)
    trainer.train(resume_from_checkpoint=True)
    return trainer
