"""Configuration of a GraphMER-SE run: every key of the YAML document, its unit, its default and what may not go together.

    configuration = read_configuration("mine.yaml")          # or a profile's name: rtx3050, t4, a100, tpu_v5e_8, cpu
    configuration = override(configuration, {"optimizer.lr": 1e-4})

The keys are those of the configuration that the GraphMER-SE project publishes; the ones it lacks say so. Defaults are
its values but where a comment gives the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.graphmer import strict_yaml
from helpers.graphmer.profiles import PROFILES
from helpers.graphmer.splits import UNITS
from helpers.graphmer.strict_yaml import Section, WrongSetting, setting

if TYPE_CHECKING:
    from helpers.graphmer.architecture import GraphMERConfig


@dataclass(frozen=True, kw_only=True)
class Run(Section, path="run"):
    seed: int = setting(1337, low=0, high=2**32 - 1)  # of weights, data order, masking and dropout
    epochs: int = setting(5, low=1)  # passes over the training documents, where max_steps is 0
    max_steps: int = setting(0, low=0)  # optimizer steps; 0 = as many as the epochs have
    gradient_accumulation_steps: int = setting(1, low=1)  # micro-batches an optimizer step
    log_interval: int = setting(50, low=1)  # optimizer steps
    eval_interval_steps: int = setting(500, low=1)  # optimizer steps
    save_interval_steps: int = setting(1000, low=1)  # optimizer steps
    mixed_precision: str = setting("auto", choices=("auto", "fp32", "bf16", "fp16"))  # auto = the best of the device
    deterministic: bool = setting(True)  # the same weights bit for bit from the same seed; some kernels are slower


@dataclass(frozen=True, kw_only=True)
class Hardware(Section, path="hardware"):
    device: str = setting("auto", choices=("auto", "cpu", "cuda", "tpu"))  # auto = a GPU where there is one
    num_workers: int = setting(0, low=0, high=64)  # loader processes beside the training one
    tpu_cores: int = setting(0, low=0)  # chips that the run insists on; 0 = all there are


@dataclass(frozen=True, kw_only=True)
class HGAT(Section, path="model.hgat"):
    """Graph attention from a triple's tail to its head before the first layer."""

    enabled: bool = setting(True)  # off: leaves enter as their tokens' embeddings
    relation_bias: bool = setting(None)  # a learned vector a relation beside its matrix; default: as `enabled`
    relation_dropout: float = setting(0.3, low=0.0, high=0.9)  # on the relations' matrices; GraphMERT's, not published

    def __post_init__(self):
        if self.relation_bias is None:
            object.__setattr__(self, "relation_bias", self.enabled)
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class Decay(Section, path="model.decay"):
    """How attention falls with the distance in the graph; not in the published document, whose code has none."""

    mode: str = setting("multiplicative", choices=("multiplicative", "additive", "none"))  # on the logits
    base: float = setting(0.6, above=0.0, high=0.999)  # factor a unit of distance; 0.6 as GraphMERT trained with


@dataclass(frozen=True, kw_only=True)
class Model(Section, path="model"):
    hidden_size: int = setting(768, low=2)  # numbers of a token's state
    num_layers: int = setting(12, low=1)  # of the encoder
    num_heads: int = setting(12, low=1)  # of attention, in each layer
    intermediate_size: int = setting(
        832, low=1
    )  # 80.3M weights with the rest of the defaults; 3072, as published, 140M
    dropout: float = setting(0.1, low=0.0, high=0.9)  # share of embeddings, attention weights and updates
    positional_encoding: str = setting("alibi", choices=("alibi", "rotary", "none"))  # of the roots
    norm: str = setting("rmsnorm", choices=("rmsnorm", "layernorm"))  # before each half of a layer
    activation: str = setting("swiglu", choices=("swiglu", "gelu"))  # of the feed-forward half
    hgat: HGAT = field(default_factory=HGAT)
    use_rel_attention_bias: bool = setting(True)  # a learned addend a relation and head between a leaf and its head
    leaf_positions: bool = setting(True)  # a learned vector a leaf slot: which token comes first; not published
    decay: Decay = field(default_factory=Decay)
    embedding_size: int = setting(256, low=1)  # of queries and entities in link prediction; not published
    token_match: bool = setting(True)  # there queries and names also meet token by token; not published


@dataclass(frozen=True, kw_only=True)
class Scheduler(Section, path="optimizer.scheduler"):
    name: str = setting("cosine", choices=("cosine", "linear", "constant"))  # after the warm-up
    warmup_steps: int = setting(1500, low=0)  # optimizer steps of linear rise


@dataclass(frozen=True, kw_only=True)
class Optimizer(Section, path="optimizer"):
    name: str = setting("adamw", choices=("adamw", "adafactor"))  # adafactor keeps no moments: 8 bytes a weight less
    lr: float = setting(3e-4, above=0.0)  # peak learning rate
    weight_decay: float = setting(0.01, low=0.0)  # share of a weight a step and learning rate
    betas: tuple[float, float] = setting((0.9, 0.98), low=0.0, high=0.99999)  # adamw only
    eps: float = setting(1e-8, above=0.0)  # adamw only
    max_grad_norm: float = setting(1.0, above=0.0)  # gradients are scaled down to this norm; not published
    scheduler: Scheduler = field(default_factory=Scheduler)


@dataclass(frozen=True, kw_only=True)
class Stage(Section, path="training_data.short_to_long_curriculum.schedule[]"):
    steps: int = field(metadata={"low": 0})  # optimizer step that the stage begins with
    max_seq_len: int = field(metadata={"low": 1})  # tokens, as training_data.max_seq_len


@dataclass(frozen=True, kw_only=True)
class Curriculum(Section, path="training_data.short_to_long_curriculum"):
    enabled: bool = setting(False)  # off: all sequences have training_data.max_seq_len
    schedule: tuple[Stage, ...] = setting(())  # the first begins at step 0, the last has training_data.max_seq_len


@dataclass(frozen=True, kw_only=True)
class TrainingData(Section, path="training_data"):
    max_seq_len: int = setting(768, low=2)  # tokens of a sequence: roots and leaf slots together
    micro_batch_size: int = setting(8, low=1)  # sequences of one forward pass a device
    pack_sequences: bool = setting(True)  # several short documents in one sequence; none sees another
    short_to_long_curriculum: Curriculum = field(default_factory=Curriculum)


@dataclass(frozen=True, kw_only=True)
class MLM(Section, path="objectives.mlm"):
    """Masked roots."""

    mask_prob: float = setting(0.15, low=0.0, high=0.9)  # share of the roots
    span_mask_identifiers: bool = setting(True)  # all tokens of an identifier together, not each by itself
    weight: float = setting(1.0, low=0.0)  # in the loss; not published


@dataclass(frozen=True, kw_only=True)
class MNM(Section, path="objectives.mnm"):
    """Masked leaves: the tail of a triple from its head and relation."""

    mask_prob: float = setting(0.2, low=0.0, high=1.0)  # share of the leaves; at 1 none is shown
    type_consistent_negatives: int = setting(2, low=0)  # wrong tails of the right type a leaf
    hard_negatives: int = setting(2, low=0)  # wrong tails that are near the right one, a leaf
    weight: float = setting(1.0, low=0.0)  # in the loss; not published
    ranking_weight: float = setting(0.5, low=0.0)  # in the loss: right tail before the negatives; not published


@dataclass(frozen=True, kw_only=True)
class Triples(Section, path="objectives.triple"):
    """True leaf or negative one; not published."""

    weight: float = setting(0.5, low=0.0)  # in the loss


@dataclass(frozen=True, kw_only=True)
class Scoring(Section, path="objectives.scoring"):
    """Head and relation to the tail by the entities' own texts, without code; not published."""

    weight: float = setting(0.5, low=0.0)  # in the loss


@dataclass(frozen=True, kw_only=True)
class Objectives(Section, path="objectives"):
    mlm: MLM = field(default_factory=MLM)
    mnm: MNM = field(default_factory=MNM)
    triple: Triples = field(default_factory=Triples)
    scoring: Scoring = field(default_factory=Scoring)


@dataclass(frozen=True, kw_only=True)
class LeavesPerAnchor(Section, path="encoding.leaves_per_anchor"):
    positive: int = setting(2, low=1)  # true triples at most
    negatives: int = setting(2, low=0)  # wrong ones at most


@dataclass(frozen=True, kw_only=True)
class Encoding(Section, path="encoding"):
    layout: str = setting("compact", choices=("compact", "full"))  # full: a leaf at each root, as GraphMERT
    leaf_tokens: int = setting(7, low=1)  # slots of a leaf
    max_head_tokens: int = setting(8, low=1)  # of a head's name that a leaf looks at
    leaves_per_anchor: LeavesPerAnchor = field(default_factory=LeavesPerAnchor)
    max_leaves_per_sequence: int = setting(10, low=1)  # true and wrong ones together
    entity_tokens: int = setting(32, low=4)  # of an entity's own text in link prediction; not published
    windows_per_document: int = setting(
        4, low=1
    )  # parts of a source longer than the roots, each under its name; not published
    vocab_size: int = setting(8192, low=512)  # of the tokenizer that is trained on the code; not published


@dataclass(frozen=True, kw_only=True)
class OntologyConstraints(Section, path="regularizers.ontology_constraints"):
    """Weights in the loss."""

    antisymmetry_weight: float = setting(0.2, low=0.0)  # both directions of an antisymmetric relation score high
    acyclicity_weight: float = setting(0.2, low=0.0)  # a sampled cycle of an acyclic relation scores high
    domain_range_weight: float = setting(0.2, low=0.0)  # a tail outside of the relation's range; not published
    margin: float = setting(0.5, low=-1.0, high=1.0)  # mean cosine of a cycle's triples that is let pass; not published


@dataclass(frozen=True, kw_only=True)
class Contrastive(Section, path="regularizers.contrastive"):
    """A masked leaf finds its tail among the other tails of the batch."""

    enabled: bool = setting(True)  # off: weight 0
    temperature: float = setting(0.07, above=0.0)  # cosines are divided by it
    weight: float = setting(1.0, low=0.0)  # in the loss; not published: its code took the temperature for it


@dataclass(frozen=True, kw_only=True)
class Regularizers(Section, path="regularizers"):
    ontology_constraints: OntologyConstraints = field(default_factory=OntologyConstraints)
    contrastive: Contrastive = field(default_factory=Contrastive)


@dataclass(frozen=True, kw_only=True)
class Checkpointing(Section, path="checkpointing"):
    activation_checkpointing: bool = setting(False)  # recompute each layer in backward instead of keeping it
    save_total_limit: int = setting(2, low=1)  # newest checkpoints that stay on disk


@dataclass(frozen=True, kw_only=True)
class Evaluation(Section, path="evaluation"):
    """Held-out triples; not in the published document."""

    split: str = setting("module", choices=("module", "entity"))  # entity: between entities that training never saw
    unit: str = setting("package", choices=UNITS)  # of source code that is held out whole
    held_out: float = setting(0.1, above=0.0, high=0.49)  # share of the triples for validation, and for test
    max_triples: int = setting(2000, low=0)  # asked at an evaluation; 0 = all
    micro_batch_size: int = setting(32, low=1)  # sequences of one forward pass a device


@dataclass(frozen=True, kw_only=True)
class Configuration(Section):
    """A whole run. Raises ValueError for values that cannot be, alone or together, and names their keys."""

    run: Run = field(default_factory=Run)
    hardware: Hardware = field(default_factory=Hardware)
    model: Model = field(default_factory=Model)
    optimizer: Optimizer = field(default_factory=Optimizer)
    training_data: TrainingData = field(default_factory=TrainingData)
    objectives: Objectives = field(default_factory=Objectives)
    encoding: Encoding = field(default_factory=Encoding)
    regularizers: Regularizers = field(default_factory=Regularizers)
    checkpointing: Checkpointing = field(default_factory=Checkpointing)
    evaluation: Evaluation = field(default_factory=Evaluation)

    def __post_init__(self):
        super().__post_init__()
        for check in (_shapes, _lengths, _devices, _tasks):
            for wrong in check(self):
                raise wrong

    def stages(self) -> tuple[tuple[int, int], ...]:
        """(optimizer step it begins with, tokens of a sequence) of each stage; one where there is no curriculum."""
        curriculum = self.training_data.short_to_long_curriculum
        if not curriculum.enabled:
            return ((0, self.training_data.max_seq_len),)
        return tuple((stage.steps, stage.max_seq_len) for stage in curriculum.schedule)

    def shape(self, max_seq_len: int) -> tuple[int, int]:
        """Roots and leaves of a sequence of so many tokens: S + G·L = `max_seq_len` in both layouts."""
        leaf_tokens, leaves = self.encoding.leaf_tokens, self.encoding.max_leaves_per_sequence
        if self.encoding.layout == "full":
            roots = max_seq_len // (1 + leaf_tokens)
            return roots, roots
        return max_seq_len - leaves * leaf_tokens, leaves

    def batch_size(self, device_count: int) -> int:
        """Sequences an optimizer step over all devices.

        Raises ValueError when the machine has not the chips that `hardware.tpu_cores` insists on.
        """
        cores = self.hardware.tpu_cores
        if cores and cores != device_count:
            raise WrongSetting(
                f"hardware.tpu_cores={cores}: the machine has {device_count}; give {device_count}, or 0 for all there are",
                "hardware.tpu_cores",
            )
        return self.training_data.micro_batch_size * self.run.gradient_accumulation_steps * device_count

    def model_config(self, vocab_size: int, num_relations: int, **found: Any) -> GraphMERConfig:
        """The model's own configuration.

        vocab_size: of the trained tokenizer.
        num_relations: of the graph, inverse ones counted.
        found: what else only tokenizer, graph and ontology can say: pad_token_id, acyclic_relations, relation_ranges ...
        """
        from helpers.graphmer.architecture import GraphMERConfig

        model, encoding, objectives = self.model, self.encoding, self.objectives
        constraints, contrastive = self.regularizers.ontology_constraints, self.regularizers.contrastive
        return GraphMERConfig(
            vocab_size=vocab_size,
            num_relations=num_relations,
            hidden_size=model.hidden_size,
            num_hidden_layers=model.num_layers,
            num_attention_heads=model.num_heads,
            intermediate_size=model.intermediate_size,
            dropout=model.dropout,
            positional_encoding=model.positional_encoding,
            leaf_positions=model.leaf_positions,
            norm=model.norm,
            activation=model.activation,
            hgat=model.hgat.enabled,
            hgat_relation_bias=model.hgat.relation_bias,
            relation_dropout=model.hgat.relation_dropout,
            relation_attention_bias=model.use_rel_attention_bias,
            decay=model.decay.mode,
            decay_base=model.decay.base,
            leaf_tokens=encoding.leaf_tokens,
            max_head_tokens=encoding.max_head_tokens,
            embedding_size=model.embedding_size,
            token_match=model.token_match,
            temperature=contrastive.temperature,
            ontology_margin=constraints.margin,
            mlm_weight=objectives.mlm.weight,
            mnm_weight=objectives.mnm.weight,
            mnm_ranking_weight=objectives.mnm.ranking_weight,
            triple_weight=objectives.triple.weight,
            contrastive_weight=contrastive.weight if contrastive.enabled else 0.0,
            scoring_weight=objectives.scoring.weight,
            antisymmetry_weight=constraints.antisymmetry_weight,
            acyclicity_weight=constraints.acyclicity_weight,
            domain_range_weight=constraints.domain_range_weight,
            **found,
        )


def read_configuration(source: str | Path) -> Configuration:
    """The configuration in a file, of a profile, or in a YAML text.

    Raises FileNotFoundError, and ValueError `file:line: key=value: what is wrong; remedy`.
    """
    if isinstance(source, str) and source in PROFILES:
        return strict_yaml.read(Configuration, PROFILES[source], f"profile {source}")
    if isinstance(source, str) and ("\n" in source or ": " in source or not source.strip()):
        return strict_yaml.read(Configuration, source, "configuration")
    path = Path(source).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"config={str(source)!r}: nothing at {path.resolve()}; give a file or a profile: {', '.join(PROFILES)}"
        )
    try:
        return strict_yaml.read(Configuration, path.read_text(encoding="utf-8"), str(source))
    except UnicodeDecodeError as error:
        raise ValueError(f"{source}: not UTF-8 text ({error})") from error


def to_yaml(configuration: Configuration) -> str:
    """Every key with its value; `read_configuration` reads the same configuration from it."""
    return strict_yaml.write(configuration)


def override(configuration: Configuration, changes: Mapping[str, Any]) -> Configuration:
    """A copy with other values, `{"optimizer.lr": 1e-4}`; a text is read as in a file, so the command line's will do.

    Raises ValueError as the reader does, without a line.
    """
    return strict_yaml.override(configuration, changes)


def _shapes(of: Configuration) -> Iterator[WrongSetting]:
    model, encoding, anchor = of.model, of.encoding, of.encoding.leaves_per_anchor
    heads = ("model.hidden_size", "model.num_heads")
    if model.hidden_size % model.num_heads:
        yield _wrong(of, heads, "not a multiple of it", "give one")
    if model.positional_encoding == "rotary" and model.hidden_size // model.num_heads % 2:
        yield _wrong(
            of, ("model.positional_encoding", *heads), "rotates pairs, and a head is odd in width", "use alibi"
        )
    if model.hgat.relation_bias and not model.hgat.enabled:
        yield _wrong(of, ("model.hgat.relation_bias", "model.hgat.enabled"), "is a part of it", "set both to false")
    leaves, total = "encoding.max_leaves_per_sequence", anchor.positive + anchor.negatives
    if encoding.layout == "full":
        if of.training_data.pack_sequences:
            keys = ("training_data.pack_sequences", "encoding.layout")
            yield _wrong(of, keys, "the full layout holds one document", "set pack_sequences to false")
        if total > 1:
            keys = tuple(f"encoding.leaves_per_anchor.{name}" for name in ("positive", "negatives"))
            yield _wrong(
                of, (*keys, "encoding.layout"), "a root has one leaf there", "set positive to 1, negatives to 0"
            )
    if total > encoding.max_leaves_per_sequence:
        keys = (leaves, "encoding.leaves_per_anchor.positive", "encoding.leaves_per_anchor.negatives")
        yield _wrong(of, keys, "not even one anchor has room", f"give {total} or more")


def _lengths(of: Configuration) -> Iterator[WrongSetting]:
    data, encoding = of.training_data, of.encoding
    longest, schedule = "training_data.max_seq_len", "training_data.short_to_long_curriculum.schedule"
    places = [(longest, data.max_seq_len)]
    if data.short_to_long_curriculum.enabled:
        stages = of.stages()
        if not stages or stages[0][0]:
            yield WrongSetting(f"{schedule}: must begin with a stage at steps 0", schedule)
        for position, ((before, shorter), (step, length)) in enumerate(pairwise(stages), start=1):
            key = f"{schedule}[{position}]"
            if step <= before:
                yield WrongSetting(f"{key}.steps={step}: must be more than the {before} before it", f"{key}.steps")
            if length <= shorter:
                said = f"{key}.max_seq_len={length}: must be more than the {shorter} before it"
                yield WrongSetting(said, f"{key}.max_seq_len")
        key = f"{schedule}[{len(stages) - 1}].max_seq_len"
        if stages and stages[-1][1] != data.max_seq_len:
            said = f"{key}={stages[-1][1]}: the last stage must have {longest}={data.max_seq_len}, which nothing reads else"
            yield WrongSetting(said, key, longest)
        places += [(f"{schedule}[{at}].max_seq_len", length) for at, (_, length) in enumerate(stages)]
    for key, length in places:
        if encoding.layout == "full" and length % (1 + encoding.leaf_tokens):
            remedy = f"give a multiple of {1 + encoding.leaf_tokens}"
            said = f"{key}={length}: the full layout has {encoding.leaf_tokens} leaf slots for each root; {remedy}"
            yield WrongSetting(said, key, "encoding.layout", "encoding.leaf_tokens")
        roots, leaves = of.shape(length)
        if roots < encoding.max_head_tokens:
            said = (
                f"{key}={length}: {leaves} leaves of {encoding.leaf_tokens} slots leave {max(roots, 0)} tokens for code, "
                f"encoding.max_head_tokens={encoding.max_head_tokens} must fit; give a longer sequence or fewer leaves"
            )
            yield WrongSetting(said, key, "encoding.max_leaves_per_sequence", "encoding.leaf_tokens")
        if encoding.layout == "full" and encoding.max_leaves_per_sequence > leaves:
            keys = ("encoding.max_leaves_per_sequence", key)
            yield WrongSetting(
                f"{keys[0]}={encoding.max_leaves_per_sequence}: a sequence of {length} has {leaves}", *keys
            )


def _devices(of: Configuration) -> Iterator[WrongSetting]:
    hardware, precision, optimizer = of.hardware, of.run.mixed_precision, of.optimizer
    if precision == "fp16" and hardware.device in ("tpu", "cpu"):
        keys = ("run.mixed_precision", "hardware.device")
        remedy = "use bf16" if hardware.device == "tpu" else "use fp32 or bf16"
        yield _wrong(of, keys, "fp16 with loss scaling is for GPUs", remedy)
    if hardware.num_workers and hardware.device == "tpu":
        keys = ("hardware.num_workers", "hardware.device")
        yield _wrong(of, keys, "torch_xla's own threads feed a TPU, forked workers hang", "give 0")
    if hardware.tpu_cores and hardware.device != "tpu":
        yield _wrong(of, ("hardware.tpu_cores", "hardware.device"), "there are none", "give 0, or device: tpu")
    for name in ("betas", "eps"):
        if optimizer.name == "adafactor" and getattr(optimizer, name) != getattr(Optimizer, name):
            yield _wrong(of, (f"optimizer.{name}", "optimizer.name"), "Adafactor has none", "leave it out")


def _tasks(of: Configuration) -> Iterator[WrongSetting]:
    mlm, mnm, triple = of.objectives.mlm, of.objectives.mnm, of.objectives.triple
    contrastive, anchor = of.regularizers.contrastive, of.encoding.leaves_per_anchor
    for name, objective in (("mlm", mlm), ("mnm", mnm)):
        if objective.weight and not objective.mask_prob:
            keys = (f"objectives.{name}.mask_prob", f"objectives.{name}.weight")
            yield _wrong(of, keys, "nothing is masked, so there is nothing to learn", "mask some, or set weight to 0")
    negatives = ("objectives.mnm.type_consistent_negatives", "objectives.mnm.hard_negatives")
    if mnm.ranking_weight and not mnm.type_consistent_negatives + mnm.hard_negatives:
        keys = ("objectives.mnm.ranking_weight", *negatives)
        yield _wrong(of, keys, "there is nothing to rank the tail before", "ask for negatives, or set it to 0")
    keys = ("objectives.triple.weight", "encoding.leaves_per_anchor.negatives")
    if triple.weight and not anchor.negatives:
        yield _wrong(of, keys, "all leaves are true", "ask for negatives, or set the weight to 0")
    if anchor.negatives and not triple.weight:
        yield _wrong(
            of, keys[::-1], "wrong leaves are shown and nothing learns to tell them", "set both to 0 or neither"
        )
    if contrastive.enabled and not contrastive.weight:
        keys = ("regularizers.contrastive.weight", "regularizers.contrastive.enabled")
        yield _wrong(of, keys, "it is on and counts for nothing", "give a weight, or set enabled to false")
    scoring = of.objectives.scoring.weight
    for name in ("antisymmetry_weight", "acyclicity_weight"):
        if getattr(of.regularizers.ontology_constraints, name) and not scoring:
            keys = (f"regularizers.ontology_constraints.{name}", "objectives.scoring.weight")
            yield _wrong(
                of, keys, "it forbids high scores that nothing teaches", "give scoring a weight, or set this to 0"
            )
    if not any((mlm.weight, mnm.weight, mnm.ranking_weight, triple.weight, contrastive.enabled, scoring)):
        keys = ("objectives.mlm.weight", "objectives.mnm.weight", "regularizers.contrastive.enabled")
        yield _wrong(of, keys, "no objective is left", "give one a weight")


def _wrong(of: Configuration, keys: tuple[str, ...], problem: str, remedy: str) -> WrongSetting:
    """`first=value with second=value: problem; remedy`."""

    def shown(key: str) -> str:
        value: Any = of
        for name in key.split("."):
            value = getattr(value, name)
        return f"{key}={str(value).lower() if isinstance(value, bool) else value}"

    return WrongSetting(f"{shown(keys[0])} with {', '.join(map(shown, keys[1:]))}: {problem}; {remedy}", *keys)
