"""The steps of a GraphMER run: graph to sequences, model, plan, trainer. `evaluation.py` says what it is worth."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast, set_seed

from helpers.graphmer.chains import LeafyChains
from helpers.graphmer.configuration import Configuration
from helpers.graphmer.curriculum import Curriculum
from helpers.graphmer.documents import Documents
from helpers.graphmer.encoded_documents import EncodedDocuments
from helpers.graphmer.knowledge_graph import KnowledgeGraph, load_graph
from helpers.graphmer.memory import encoded_texts, estimate_run, run_options
from helpers.graphmer.model import GraphMERForPreTraining
from helpers.graphmer.negatives import Relations
from helpers.graphmer.ontology import Ontology, read_ontology
from helpers.graphmer.splits import Splits, split_by_entity, split_by_module
from helpers.graphmer.tokenizer import break_tokens, separator_tokens, train_tokenizer
from helpers.graphmer.training import GraphTrainer, new_trainer
from helpers.graphmer.validation import Validation, validate
from helpers.plan import GIB, Plan, choose_optimizer, choose_workers
from helpers.planning import forecast as forecasts
from helpers.planning.architectures import graphmer_se
from helpers.planning.forecast import Forecast
from helpers.planning.jobs import Job, Sizes
from helpers.runtime import Runtime


@dataclass(frozen=True)
class Corpus:
    """A graph, what of it is held out, and the sequences of both."""

    source: str  # data source and a digest of graph and code: the same string means the same data
    graph: KnowledgeGraph
    ontology: Ontology
    validity: Validation
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

    Raises what `load_graph`, the splits and `LeafyChains` do.
    """
    graph, ontology = load_graph(data_source), read_ontology()
    evaluation, encoding, seed = configuration.evaluation, configuration.encoding, configuration.run.seed
    split = split_by_module if evaluation.split == "module" else split_by_entity
    splits = split(graph, seed=seed, unit=evaluation.unit, held_out=evaluation.held_out)
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
    relations = Relations(ontology)

    def chains(triples, known, **changed) -> LeafyChains:
        return LeafyChains(
            graph, triples, encoded, tokenizer, relations, known=known, **(_options(configuration) | changed)
        )

    return Corpus(
        source=_source(data_source, graph, documents),
        graph=graph,
        ontology=ontology,
        validity=validate(graph, ontology),
        splits=splits,
        documents=documents,
        tokenizer=tokenizer,
        # The held-out triples are no wrong tails in training, which would tell the model that they are false.
        train=chains(splits.train, (*splits.validation, *splits.test)),
        validation=chains(splits.validation, (*splits.train, *splits.test)),
    )


def _source(data_source: str, graph: KnowledgeGraph, documents: Documents) -> str:
    # The name alone of a folder: results are shared, and the digest says which it was.
    name = data_source if data_source == "sample" else Path(data_source).resolve().name
    digest = hashlib.sha256(graph.digest().encode())
    for text in documents.sources():
        digest.update(hashlib.sha256(text.encode()).digest())
    return f"{name}, sha256 {digest.hexdigest()[:16]}"


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
        "leaf_tokens": encoding.leaf_tokens,
        "head_tokens": encoding.max_head_tokens,
        "entity_tokens": encoding.entity_tokens,
        "mask_prob": objectives.mlm.mask_prob,
        "span_mask_identifiers": objectives.mlm.span_mask_identifiers,
        "leaf_mask_prob": objectives.mnm.mask_prob,
        "positives": encoding.leaves_per_anchor.positive,
        "negatives": encoding.leaves_per_anchor.negatives,
        "type_consistent_negatives": objectives.mnm.type_consistent_negatives,
        "hard_negatives": objectives.mnm.hard_negatives,
        "windows": encoding.windows_per_document,
        "pack": configuration.training_data.pack_sequences,
        "layout": encoding.layout,
        "seed": configuration.run.seed,
    }


def new_model(configuration: Configuration, corpus: Corpus) -> GraphMERForPreTraining:
    """An untrained model; its weights follow from `run.seed`."""
    set_seed(configuration.run.seed)
    properties = corpus.relations.properties() | {
        "separator_ids": separator_tokens(corpus.tokenizer),
        "break_ids": break_tokens(corpus.tokenizer),
    }
    config = configuration.model_config(len(corpus.tokenizer), properties.pop("num_relations"), **properties)
    return GraphMERForPreTraining(config)


def make_plan(configuration: Configuration, model: GraphMERForPreTraining, corpus: Corpus, machine: Runtime) -> Plan:
    """The configuration as a plan; nothing is chosen that it says.

    Raises ValueError: the configuration asks for another device, or for chips that are not there.
    """
    batch = configuration.batch_size(machine.device_count)
    wanted = configuration.hardware.device
    kind = {"auto": machine.kind, "tpu": "xla"}.get(wanted, wanted)
    if kind != machine.kind:
        raise ValueError(
            f"hardware.device={wanted!r}: this run is on {machine.device_name} ({machine.kind}); choose that runtime, "
            "or give 'auto'"
        )
    run, data = configuration.run, configuration.training_data
    epochs = max(1, run.epochs * len(corpus.train) // batch)
    steps = run.max_steps or epochs
    optimizer, reason = choose_optimizer(machine)
    workers, loader = choose_workers(machine, compute_bound_loader=False)
    estimate = estimate_run(
        configuration,
        model.config.vocab_size,
        model.config.num_relations,
        kind=machine.kind,
        precision=machine.precision,
    ).total
    reasons = dict.fromkeys(
        ("batch_size", "learning_rate", "warmup_steps", "weight_decay", "max_grad_norm"), "asked for"
    )
    return Plan(
        precision=machine.precision,
        per_device_batch_size=data.micro_batch_size,
        gradient_accumulation_steps=run.gradient_accumulation_steps,
        device_count=machine.device_count,
        learning_rate=configuration.optimizer.lr,
        max_steps=steps,
        sequence_length=data.max_seq_len,
        warmup_steps=min(configuration.optimizer.scheduler.warmup_steps, steps),
        weight_decay=configuration.optimizer.weight_decay,
        max_grad_norm=configuration.optimizer.max_grad_norm,
        optimizer=optimizer if configuration.optimizer.name == "adamw" else configuration.optimizer.name,
        gradient_checkpointing=configuration.checkpointing.activation_checkpointing,
        dataloader_workers=configuration.hardware.num_workers or workers,
        pin_memory=machine.kind == "cuda",
        memory_estimate=estimate,
        reasons=reasons
        | {
            "precision": machine.precision_reason,
            "max_steps": "asked for" if run.max_steps else f"{run.epochs} passes over {len(corpus.train)} sequences",
            "optimizer": reason,
            "dataloader_workers": loader,
            "memory_estimate": _fits(estimate, machine),
        },
    )


def _fits(estimate: int, machine: Runtime) -> str:
    if not machine.memory:
        return "from shapes, not measured"
    share = f"from shapes; {machine.device_name} has {machine.memory / GIB:.1f} GiB"
    return share if estimate < machine.memory else f"{share}: too little, lower training_data.micro_batch_size"


def training_job(configuration: Configuration, model: GraphMERForPreTraining) -> Job:
    """What a training step of this model is made of, at the configuration's longest sequences."""
    config, options = model.config, run_options(configuration)
    roots, leaves = configuration.shape(configuration.training_data.max_seq_len)
    sizes = Sizes(
        family="graphmer",
        vocab=config.vocab_size,
        width=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        inner=config.intermediate_size,
    )
    switches = ("activation", "norm", "hgat", "hgat_relation_bias", "relation_attention_bias", "leaf_positions")
    return graphmer_se(
        sizes,
        "",
        roots=roots,
        leaves=leaves,
        leaf_tokens=config.leaf_tokens,
        head_tokens=config.max_head_tokens,
        relations=config.num_relations,
        embedding_size=config.embedding_size,
        mlm_positions=options["masked_roots"],
        texts=sum(encoded_texts(config, leaves, options["negatives"])),
        texts_length=options["entity_tokens"],
        decay=config.decay != "none",
        token_match=config.token_match,
        **{name: getattr(config, name) for name in switches},
    )


def forecast(configuration: Configuration, model: GraphMERForPreTraining, plan: Plan, machine: Runtime) -> Forecast:
    """Time, memory and cost that the run is expected to take, length after length of its curriculum."""
    encoding, stages = configuration.encoding, configuration.stages()
    lengths = Curriculum.read(
        stages, leaves=encoding.max_leaves_per_sequence, leaf_tokens=encoding.leaf_tokens, layout=encoding.layout
    )
    steps = lengths.phase_steps(plan.max_steps)
    return forecasts.make(
        training_job(configuration, model),
        plan,
        machine,
        architecture=model.config.model_type,
        parameters=sum(weight.numel() for weight in model.parameters()),
        phases=[(count, length) for count, (_, length) in zip(steps, stages, strict=True) if count],
        counted_bytes=plan.memory_estimate,
        tokens=0,  # the meter counts roots
    )


def train(
    configuration: Configuration,
    corpus: Corpus,
    machine: Runtime,
    folder: Path,
    *,
    report_to: str = "none",
    patience: int = 0,
    resume: bool = True,
) -> GraphTrainer:
    """A new model, trained as configured; the trainer that holds it."""
    model = new_model(configuration, corpus)
    trainer = new_trainer(
        model,
        corpus.train,
        corpus.validation,
        configuration,
        make_plan(configuration, model, corpus, machine),
        machine,
        folder,
        report_to=report_to,
        patience=patience,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def with_options(corpus: Corpus, configuration: Configuration) -> Corpus:
    """The same graph and tokens in sequences of another configuration."""

    def chains(like: LeafyChains, triples, known) -> LeafyChains:
        return LeafyChains(
            corpus.graph,
            triples,
            like.encoded,
            corpus.tokenizer,
            like.relations,
            known=known,
            **_options(configuration),
        )

    splits = corpus.splits
    return dataclasses.replace(
        corpus,
        train=chains(corpus.train, splits.train, (*splits.validation, *splits.test)),
        validation=chains(corpus.validation, splits.validation, (*splits.train, *splits.test)),
    )
