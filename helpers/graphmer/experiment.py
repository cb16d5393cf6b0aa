"""The steps of a GraphMER run: graph to sequences, model, plan, trainer, and what the trained encoder is worth."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast, set_seed

from helpers.cpu_copy import cpu_copy
from helpers.graphmer import kge, ranking, tasks
from helpers.graphmer.baselines import Frequency, strings
from helpers.graphmer.collation import LeafyChainCollator, LeafyChains
from helpers.graphmer.configuration import Configuration, override
from helpers.graphmer.documents import Documents, EncodedDocuments
from helpers.graphmer.knowledge_graph import KnowledgeGraph, load_graph
from helpers.graphmer.link_prediction import LinkPredictor
from helpers.graphmer.memory import estimate_run
from helpers.graphmer.model import GraphMERForPreTraining
from helpers.graphmer.negatives import Relations
from helpers.graphmer.ontology import Ontology, read_ontology
from helpers.graphmer.splits import Splits, split_by_entity, split_by_module
from helpers.graphmer.tokenizer import train_tokenizer
from helpers.graphmer.training import GraphTrainer, new_trainer
from helpers.graphmer.validation import Validation, validate
from helpers.graphmer.violations import violation_rates
from helpers.plan import GIB, Plan, choose_optimizer, choose_workers
from helpers.runtime import Runtime

SCORES_AT_ONCE = 2**26  # of queries and candidates; 256 MiB
SEARCHED, ASKED_PAIRS, VIOLATION_QUERIES = 500, 500, 200  # functions, heads, triples
KNOWLEDGE_GRAPH_EMBEDDINGS = ("transe", "distmult", "rotate")


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
        "pack": configuration.training_data.pack_sequences,
        "layout": encoding.layout,
        "seed": configuration.run.seed,
    }


def new_model(configuration: Configuration, corpus: Corpus) -> GraphMERForPreTraining:
    """An untrained model; its weights follow from `run.seed`."""
    set_seed(configuration.run.seed)
    properties = corpus.relations.properties()
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


# ---- what it is worth


def measure(model: GraphMERForPreTraining, corpus: Corpus, configuration: Configuration) -> dict:
    """Every metric of the run on held-out triples: links, call graph, dependencies, names, search, masked tokens, violations."""
    predictor = LinkPredictor(model, corpus.validation)
    return {
        "links": links(predictor, corpus, configuration),
        **_of_pairs(predictor, corpus, configuration),
        "code_search": tasks.code_search(
            _documented(corpus, configuration), tasks.by_embedding(_text_embedding(model, corpus))
        ),
        "masked": masked(model, corpus, configuration),
        "violations": violation_rates(
            LinkPredictor(model, corpus.validation, both_ends=False),
            corpus.splits,
            corpus.graph,
            corpus.ontology,
            max_queries=VIOLATION_QUERIES,
            seed=configuration.run.seed,
            chunk=SCORES_AT_ONCE,
        ),
    }


def links(scorer: ranking.Scorer, corpus: Corpus, configuration: Configuration, part: str = "test") -> dict:
    """`ranking.evaluate` of any scorer on the triples that the configuration asks for."""
    return ranking.evaluate(
        scorer,
        corpus.splits,
        corpus.graph,
        corpus.ontology,
        part=part,
        max_queries=configuration.evaluation.max_triples,
        seed=0,  # the same triples whatever the run's seed
        chunk=SCORES_AT_ONCE,
    )


def _of_pairs(scorer: ranking.Scorer, corpus: Corpus, configuration: Configuration) -> dict:
    """Call graph, dependencies and disambiguation, where the held-out parts have such triples."""
    found = {}
    for name, relations in (("call_graph", tasks.CALLS), ("dependencies", tasks.IMPORTS)):
        if all(_has(part, relations) for part in (corpus.splits.validation, corpus.splits.test)):
            validation, test = (
                tasks.candidate_pairs(
                    corpus.splits,
                    corpus.graph,
                    corpus.ontology,
                    relations=relations,
                    part=part,
                    max_heads=ASKED_PAIRS,
                )
                for part in ("validation", "test")
            )
            found[name] = tasks.pair_f1(scorer, validation, test)
    if _has(corpus.splits.test, tasks.CALLS):
        try:
            mentions = tasks.ambiguous_mentions(
                corpus.splits, corpus.graph, corpus.ontology, text=corpus.documents.text
            )
        except ValueError:  # no name that two entities share
            return found
        found["disambiguation"] = tasks.disambiguation(scorer, mentions)
    return found


def _has(triples: Iterable, relations: tuple[str, ...]) -> bool:
    return any(triple.relation in relations for triple in triples)


def _documented(corpus: Corpus, configuration: Configuration) -> list[tasks.Function]:
    heads = {triple.head for triple in corpus.splits.test}
    return tasks.documented_functions(
        corpus.graph, corpus.documents.text, heads, functions=SEARCHED, seed=configuration.run.seed
    )


def _text_embedding(model: GraphMERForPreTraining, corpus: Corpus) -> Callable[[list[str]], np.ndarray]:
    model = cpu_copy(model) if model.device.type == "xla" else model

    @torch.no_grad()
    def embed(texts: list[str]) -> np.ndarray:
        found = []
        for first in range(0, len(texts), 32):
            ids = corpus.tokenizer(
                texts[first : first + 32],
                truncation=True,
                max_length=corpus.train.roots,
                padding=True,
                add_special_tokens=False,
                return_tensors="pt",
            )["input_ids"]
            found.append(model.eval().entities(ids.to(model.device)).float().cpu().numpy())
        return np.concatenate(found)

    return embed


@torch.no_grad()
def masked(model: GraphMERForPreTraining, corpus: Corpus, configuration: Configuration) -> dict:
    """Accuracy on masked roots (MLM) and masked leaves (MNM) of at most 64 validation batches."""
    model = (cpu_copy(model) if model.device.type == "xla" else model).eval()
    chains, size = corpus.validation, configuration.evaluation.micro_batch_size
    collate = LeafyChainCollator(chains)
    roots, leaves = tasks.TokenAccuracy(), tasks.TokenAccuracy(leaves=True)
    for first in range(0, min(len(chains), 64 * size), size):
        batch = collate([chains[index] for index in range(first, min(first + size, len(chains)))])
        batch = {name: value.to(model.device) for name, value in batch.items()}
        roots.update(model.root_logits(**batch), batch["mlm_labels"])
        leaves.update(model.leaf_logits(**batch), batch["mnm_labels"])
    return {"mlm": roots.summary(), "mnm": leaves.summary()}


def with_strings(predictor: LinkPredictor, corpus: Corpus, configuration: Configuration) -> dict:
    """`links` of the encoder and the string baseline together, weighed on validation."""
    return links(_strings(corpus, configuration, {"GraphMER-SE": predictor}), corpus, configuration)


def _strings(corpus: Corpus, configuration: Configuration, also: dict[str, ranking.Scorer]) -> ranking.Scorer:
    options = {"text": corpus.documents.text, "frequency": True, "also": also, "seed": configuration.run.seed}
    return strings(corpus.splits, corpus.graph, corpus.ontology, **options)


def baselines(corpus: Corpus, configuration: Configuration) -> dict[str, dict]:
    """`links` of what any encoder must beat: counts, strings with the sources' words, and three embeddings of the graph."""
    seed = configuration.run.seed
    scorers: dict[str, Callable[[], ranking.Scorer]] = {
        "frequency": lambda: Frequency(corpus.splits.train),
        "strings": lambda: _strings(corpus, configuration, {}),
        **{
            name: (lambda name=name: kge.train_embeddings(corpus.splits.train, model=name, seed=seed))
            for name in KNOWLEDGE_GRAPH_EMBEDDINGS
        },
    }
    return {name: links(scorer(), corpus, configuration) for name, scorer in scorers.items()}


ABLATIONS = {
    "nine of ten leaves masked": {  # a sequence without any would have nothing to ask
        "objectives.mnm.mask_prob": 0.9,
        "objectives.triple.weight": 0.0,
        "encoding.leaves_per_anchor.negatives": 0,
    },
    "without H-GAT": {"model.hgat.enabled": False, "model.hgat.relation_bias": False},
    "without decay": {"model.decay.mode": "none"},
}


def ablations(configuration: Configuration, corpus: Corpus, machine: Runtime, folder: Path) -> dict[str, dict]:
    """`links` of the same encoder with one part left out, trained for as many steps."""
    found = {}
    for name, changes in ABLATIONS.items():
        changed = override(configuration, changes)
        trainer = train(changed, with_options(corpus, changed), machine, folder / name.replace(" ", "_"))
        found[name] = links(LinkPredictor(trainer.model, corpus.validation), corpus, configuration)
    return found


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


def table(rows: dict[str, dict]) -> str:
    """Name of each model beside its MRR and hits, of all triples and of those that names alone do not answer."""
    lines = [f"{'':<28}{'MRR':>8}{'hits@1':>9}{'hits@10':>9}{'MRR beyond names':>19}"]
    for name, found in rows.items():
        both, beyond = found["both"], found["beyond_names"]
        rest = f"{beyond['both']['mrr']:19.3f}" if beyond else f"{'-':>19}"
        lines.append(f"{name:<28}{both['mrr']:8.3f}{both['hits@1']:9.3f}{both['hits@10']:9.3f}{rest}")
    return "\n".join(lines)


def by_relation(rows: dict[str, dict]) -> str:
    """MRR of each relation, tails and heads together, the most frequent first."""
    first = next(iter(rows.values()))["relations"]
    names = sorted(first, key=lambda name: -first[name]["both"]["ranks"])
    lines = [f"{'':<18}{'asked':>7}" + "".join(f"{row[:16]:>18}" for row in rows)]
    for name in names:
        values = "".join(f"{found['relations'][name]['both']['mrr']:18.3f}" for found in rows.values())
        lines.append(f"{name:<18}{first[name]['both']['ranks']:7}{values}")
    return "\n".join(lines)


def tasks_table(before: dict, after: dict) -> str:
    """The other tasks, each with its 95 % interval and what chance or saying yes to all would give."""
    lines = []
    for name, value, chance in (
        ("call_graph", "f1", "all_true"),
        ("dependencies", "f1", "all_true"),
        ("disambiguation", "top1", "chance"),
        ("code_search", "mrr@10", "chance"),
    ):
        if found := after.get(name):
            low, high = found["interval"]
            lines.append(
                f"{name:<16}{value:<8}{found[value]:.3f} ({low:.3f} to {high:.3f}), {chance} {found[chance]:.3f}"
            )
    for name in ("mlm", "mnm"):
        was, now = before[name]["top1"], after["masked"][name]["top1"]
        lines.append(f"{name:<16}{'top1':<8}{now['rate']:.3f}, untrained {was['rate']:.3f}, of {now['of']} tokens")
    found = after["violations"]["any"]
    lines.append(f"{'violations':<16}{'rate':<8}{found['rate']:.3f} of {found['of']} first answers")
    return "\n".join(lines)


def answers(predictor: LinkPredictor, corpus: Corpus, entity_id: str, *, most: int = 3) -> str:
    """The likeliest tails of an entity for each relation that it may have; * marks what the graph says."""
    entity, lines = corpus.graph.entities[entity_id], [entity_id]
    true = ranking.true_answers(corpus.graph.resolved())
    for name, relation in corpus.ontology.relations.items():
        if not relation.canonical or entity.type not in relation.domain:
            continue
        candidates = ranking.admitted(corpus.graph, corpus.ontology, [name])[name][ranking.TAIL]
        scores_X = predictor.tails([entity_id], name, candidates)[0] if candidates else np.zeros(0)
        best = [candidates[place] for place in np.argsort(-scores_X, kind="stable")[:most]]
        known = true.get((ranking.TAIL, name, entity_id), set())
        lines.append(f"  {name:<16}" + ", ".join(f"{one}{'*' if one in known else ''}" for one in best))
    return "\n".join(lines)


@torch.no_grad()
def same_states(one: GraphMERForPreTraining, other: GraphMERForPreTraining, corpus: Corpus) -> float:
    """Largest difference of root states of two models on the first sequences, on the CPU in fp32."""
    collate = LeafyChainCollator(corpus.validation)
    batch = collate([corpus.validation[index] for index in range(min(2, len(corpus.validation)))])
    first, second = (cpu_copy(model).eval()(**batch).root_states for model in (one, other))
    return float((first - second).abs().max())


def further_seeds(
    count: int, configuration: Configuration, corpus: Corpus, machine: Runtime, folder: Path
) -> dict[str, dict]:
    """`links` of the same run with the next seeds; the split stays."""
    found = {}
    for seed in range(configuration.run.seed + 1, configuration.run.seed + 1 + count):
        changed = override(configuration, {"run.seed": seed})
        trainer = train(changed, with_options(corpus, changed), machine, folder / f"seed_{seed}")
        found[f"GraphMER-SE, seed {seed}"] = links(
            LinkPredictor(trainer.model, corpus.validation), corpus, configuration
        )
    return found
