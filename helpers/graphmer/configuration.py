"""Configuration of the encoder's run: every key of the YAML document, its default, and what may not go together.

    configuration = read_configuration("mine.yaml")          # or a profile's name: published, cpu, t4, rtx3050, a100, tpu_v5e_8
    configuration = override(configuration, {"optimizer.lr": 1e-4})

The keys are those of the configuration that the GraphMER-SE project publishes (profile `published`) and a few that it lacks, which
say so. Defaults are what trains best on few products: most leaves are asked for, and wrong tails come from the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from helpers.parameters import did_you_mean, expanded
from helpers.parameters import parameter as key

if TYPE_CHECKING:
    from helpers.graphmer.encoder import GraphMERConfig

PROFILES = {path.stem: path for path in sorted(Path(__file__).with_name("profiles").glob("*.yaml"))}
MOST_BYTES = 100_000  # of a document; a whole one has 3,000
HEAD_WEIGHT = 0.5  # of the terms that teach what wrong leaves and the ontology need
Rate = Annotated[float, Field(ge=0, le=0.99999)]


class Section(BaseModel):
    """One mapping of the document."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Run(Section):
    seed: int = key(1337, "Seed of weights, data order, masking and dropout.", low=0, high=2**32 - 1)
    epochs: int = key(5, "Passes over the training documents, where max_steps is 0.", low=1)
    max_steps: int = key(0, "Optimizer steps; 0 takes as many as the epochs have. Not published.", low=0)
    gradient_accumulation_steps: int = key(1, "Micro-batches of an optimizer step.", low=1)
    log_interval: int = key(50, "Optimizer steps from one line of the log to the next.", low=1)
    eval_interval_steps: int = key(500, "Optimizer steps from one evaluation to the next.", low=1)
    save_interval_steps: int = key(1000, "Optimizer steps from one checkpoint to the next.", low=1)
    mixed_precision: Literal["auto", "fp32", "bf16", "fp16"] = key("auto", "Number format of the matrix products.")
    deterministic: bool = key(True, "The same seed gives the same weights bit for bit; some kernels are slower for it.")


class Hardware(Section):
    device: Literal["auto", "cpu", "cuda", "tpu"] = key("auto", "Where to train; auto takes what there is.")
    num_workers: int = key(0, "Loader processes beside the training one.", low=0, high=64)
    tpu_cores: int = key(0, "TPU chips that the run insists on; 0 takes all there are.", low=0)


class HGAT(Section):
    enabled: bool = key(True, "Relation and head flow into the leaves; without it leaves enter as their tokens alone.")
    relation_bias: bool = key(True, "Each relation has a learned vector beside its matrix; goes with enabled.")


class Model(Section):
    hidden_size: int = key(768, "Dimensions of a token's state.", low=2)
    num_layers: int = key(12, "Layers of the encoder.", low=1)
    num_heads: int = key(12, "Attention heads of a layer.", low=1)
    intermediate_size: int = key(984, "Feed-forward width; 984 makes 80M weights, 3072 as published 140M.", low=1)
    dropout: float = key(0.1, "Share of embeddings, attention weights and updates that is dropped.", low=0, high=0.9)
    positional_encoding: Literal["alibi", "none"] = key("alibi", "How the roots know their positions.")
    norm: Literal["rmsnorm", "layernorm"] = key("rmsnorm", "Normalisation before each half of a layer.")
    activation: Literal["swiglu", "gelu"] = key("swiglu", "Activation of the feed-forward half.")
    hgat: HGAT = key(HGAT(), "Graph attention from a triple's head to its tail before the first layer.")
    use_rel_attention_bias: bool = key(True, "Each relation has an addend on the logits between a leaf and its head.")
    decay_base: float = key(
        0.6, "Attention falls by this factor for a unit of distance. Not published.", above=0, high=0.999
    )
    embedding_size: int = key(256, "Dimensions of a query or an entity in the contrastive term. Not published.", low=1)


class Scheduler(Section):
    name: Literal["cosine", "linear", "constant"] = key("cosine", "How the learning rate goes on after the warm-up.")
    warmup_steps: int = key(1500, "Optimizer steps in which the learning rate rises linearly.", low=0)


class Optimizer(Section):
    name: Literal["adamw", "adafactor"] = key("adamw", "Adafactor keeps no moments and saves 8 bytes a weight.")
    lr: float = key(3e-4, "Peak learning rate.", above=0)
    weight_decay: float = key(0.01, "Share of a weight that a step takes off, times the learning rate.", low=0)
    betas: tuple[Rate, Rate] = key((0.9, 0.98), "Decay rates of the two moments of adamw.")
    eps: float = key(1e-8, "Addend of adamw's denominator.", above=0)
    scheduler: Scheduler = key(Scheduler(), "The course of the learning rate.")


class Stage(Section):
    steps: float = key(..., "Optimizer step that the stage begins with; below 1, share of the run.", low=0)
    max_seq_len: int = key(..., "Tokens of a sequence.", low=1)


class Curriculum(Section):
    enabled: bool = key(False, "Without it all sequences have training_data.max_seq_len.")
    schedule: tuple[Stage, ...] = key((), "The first stage begins at step 0, the last has training_data.max_seq_len.")


class TrainingData(Section):
    max_seq_len: int = key(768, "Tokens of a sequence, roots and leaf slots together.", low=2)
    micro_batch_size: int = key(8, "Sequences of one forward pass on a device.", low=1)
    pack_sequences: bool = key(True, "Several short documents share a sequence, and none sees another.")
    short_to_long_curriculum: Curriculum = key(Curriculum(), "Short sequences first, longer ones later.")


class MLM(Section):
    mask_prob: float = key(0.15, "Share of the roots that is masked.", above=0, high=0.9)
    span_mask_identifiers: bool = key(True, "All tokens of an identifier are masked together, not each by itself.")


class MNM(Section):
    mask_prob: float = key(0.9, "Share of the leaves that is masked; at 1 none is shown.", above=0, high=1)
    type_consistent_negatives: int = key(0, "Wrong tails of the right type for each masked leaf.", low=0)
    hard_negatives: int = key(0, "Wrong tails for each masked leaf that are near the right one.", low=0)


class Objectives(Section):
    mlm: MLM = key(MLM(), "Masked roots.")
    mnm: MNM = key(MNM(), "Masked leaves: the tail of a triple from its head and relation.")


class LeavesPerAnchor(Section):
    positive: int = key(8, "True triples at most.", low=1)
    negatives: int = key(0, "Wrong triples at most; the model learns to tell them.", low=0)


class Encoding(Section):
    leaves_per_anchor: LeavesPerAnchor = key(LeavesPerAnchor(), "Leaves where one entity is named.")
    max_leaves_per_sequence: int = key(24, "True and wrong leaves together.", low=1)
    leaf_tokens: int = key(4, "Slots of a leaf, a token each. Not published.", low=1)
    entity_tokens: int = key(20, "Tokens of an entity's own text in the contrastive term. Not published.", low=4)
    vocab_size: int = key(8192, "Tokens of the tokenizer that is trained on the code. Not published.", low=512)


class OntologyConstraints(Section):
    antisymmetry_weight: float = key(0.0, "Weight of an antisymmetric relation that scores high both ways.", low=0)
    acyclicity_weight: float = key(0.0, "Weight where a cycle of an acyclic relation scores high.", low=0)


class Contrastive(Section):
    enabled: bool = key(True, "A masked leaf finds its tail among the other tails of the batch.")
    temperature: float = key(0.07, "Cosines are divided by it.", above=0)


class Regularizers(Section):
    ontology_constraints: OntologyConstraints = key(OntologyConstraints(), "What the ontology forbids.")
    contrastive: Contrastive = key(Contrastive(), "The contrastive term.")


class Checkpointing(Section):
    activation_checkpointing: bool = key(False, "Each layer is computed again in the backward pass instead of kept.")


class Evaluation(Section):
    held_out: float = key(0.1, "Share of the triples for validation, and as much for test.", above=0, high=0.49)
    max_triples: int = key(500, "Triples that the test asks for; 0 takes all.", low=0)


class Configuration(Section):
    """A whole run. Raises ValueError for values that cannot be, alone or together, and names their keys."""

    run: Run = Run()
    hardware: Hardware = Hardware()
    model: Model = Model()
    optimizer: Optimizer = Optimizer()
    training_data: TrainingData = TrainingData()
    objectives: Objectives = Objectives()
    encoding: Encoding = Encoding()
    regularizers: Regularizers = Regularizers()
    checkpointing: Checkpointing = Checkpointing()
    evaluation: Evaluation = key(Evaluation(), "Held-out triples. Not published.")

    @model_validator(mode="after")
    def _goes_together(self):
        if wrong := [*_combinations(self), *_lengths(self)]:
            raise ValueError("\n".join(wrong))
        return self

    def stages(self) -> tuple[tuple[float, int], ...]:
        """(`steps` it begins with, tokens of a sequence) of each stage; one where there is no curriculum."""
        curriculum = self.training_data.short_to_long_curriculum
        if not curriculum.enabled:
            return ((0, self.training_data.max_seq_len),)
        return tuple((stage.steps, stage.max_seq_len) for stage in curriculum.schedule)

    def roots(self, max_seq_len: int) -> int:
        """Roots of a sequence of so many tokens, S = max_seq_len - G L."""
        return max_seq_len - self.encoding.max_leaves_per_sequence * self.encoding.leaf_tokens

    @property
    def reads_names(self) -> bool:
        """Whether a term of the loss is over entities, which are read by their names."""
        ontology = self.regularizers.ontology_constraints
        return self.regularizers.contrastive.enabled or ontology.antisymmetry_weight + ontology.acyclicity_weight > 0

    def batch_size(self, device_count: int) -> int:
        """Sequences of an optimizer step over all devices. Raises ValueError without the chips that the run insists on."""
        cores = self.hardware.tpu_cores
        if cores and cores != device_count:
            raise ValueError(
                f"hardware.tpu_cores={cores}: the machine has {device_count}; give {device_count}, or 0 for all"
            )
        return self.training_data.micro_batch_size * self.run.gradient_accumulation_steps * device_count

    def graphmer_config(self, vocab_size: int, num_relations: int, **found: Any) -> GraphMERConfig:
        """The model's own configuration; found: what only graph and ontology can say, such as acyclic_relations."""
        from helpers.graphmer.encoder import GraphMERConfig

        model, ontology = self.model, self.regularizers.ontology_constraints
        return GraphMERConfig(
            vocab_size=vocab_size,
            num_relations=num_relations,
            **model.model_dump(exclude={"num_layers", "num_heads", "hgat", "use_rel_attention_bias"}),
            num_hidden_layers=model.num_layers,
            num_attention_heads=model.num_heads,
            hgat=model.hgat.enabled,
            hgat_relation_bias=model.hgat.relation_bias,
            relation_attention_bias=model.use_rel_attention_bias,
            leaf_tokens=self.encoding.leaf_tokens,
            contrastive_temperature=self.regularizers.contrastive.temperature,
            contrastive_weight=float(self.regularizers.contrastive.enabled),
            triple_weight=HEAD_WEIGHT * (self.encoding.leaves_per_anchor.negatives > 0),
            scoring_weight=HEAD_WEIGHT * (ontology.antisymmetry_weight + ontology.acyclicity_weight > 0),
            **ontology.model_dump(),
            **found,
        )


def _combinations(of: Configuration) -> Iterator[str]:
    model, run, hardware, anchor = of.model, of.run, of.hardware, of.encoding.leaves_per_anchor
    if model.hidden_size % model.num_heads:
        yield f"{model.hidden_size=} with {model.num_heads=}: not a multiple of it; give one"
    if model.hgat.relation_bias and not model.hgat.enabled:
        yield f"{model.hgat.relation_bias=} with {model.hgat.enabled=}: is a part of it; set both to false"
    if anchor.positive + anchor.negatives > (most := of.encoding.max_leaves_per_sequence):
        yield f"encoding.max_leaves_per_sequence={most}: not even one anchor has room; give {anchor.positive + anchor.negatives}"
    if run.mixed_precision == "fp16" and hardware.device in ("tpu", "cpu"):
        yield f"{run.mixed_precision=} with {hardware.device=}: fp16 with loss scaling is for GPUs; use bf16 or fp32"
    if hardware.num_workers and hardware.device == "tpu":
        yield f"{hardware.num_workers=} with {hardware.device=}: torch_xla's own threads feed a TPU; give 0"
    if hardware.tpu_cores and hardware.device != "tpu":
        yield f"{hardware.tpu_cores=} with {hardware.device=}: there are none; give 0, or device: tpu"
    for name in ("betas", "eps"):
        value = getattr(of.optimizer, name)
        if of.optimizer.name == "adafactor" and value != getattr(Optimizer(), name):
            yield f"optimizer.{name}={value} with optimizer.name='adafactor': Adafactor has none; leave it out"
    mnm = of.objectives.mnm
    if mnm.type_consistent_negatives + mnm.hard_negatives and not of.reads_names:
        yield (
            f"objectives.{mnm.type_consistent_negatives=}, {mnm.hard_negatives=} with "
            "regularizers.contrastive.enabled=False: nothing learns to tell wrong tails; set them to 0"
        )


def _lengths(of: Configuration) -> Iterator[str]:
    schedule, stages = "training_data.short_to_long_curriculum.schedule", of.stages()
    if not stages or stages[0][0]:
        yield f"{schedule}: must begin with a stage at steps 0"
    if stages and stages[-1][1] != of.training_data.max_seq_len:
        yield f"{schedule}: the last stage must have training_data.max_seq_len={of.training_data.max_seq_len}"
    if any(now[0] <= before[0] or now[1] <= before[1] for before, now in pairwise(stages)):
        yield f"{schedule}: steps and max_seq_len must rise from stage to stage"
    for _, length in stages:
        if of.roots(length) < 8:
            leaves = f"{of.encoding.max_leaves_per_sequence} leaves of {of.encoding.leaf_tokens} tokens"
            yield f"max_seq_len={length} with {leaves} leaves no room for code; give a longer sequence or fewer leaves"


# ---- reading


def read_configuration(source: str | Path) -> Configuration:
    """The configuration in a file, or of a profile; keys that are left out have their defaults.

    Raises FileNotFoundError, and ValueError `file:line: key=value: what is wrong` for each thing that is wrong.
    """
    path = PROFILES.get(str(source)) or expanded("config", str(source))
    if not path.is_file():
        raise FileNotFoundError(f"config={str(source)!r}: no such file; give one, or a profile: {', '.join(PROFILES)}")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path}: {path.stat().st_size:,} bytes are no configuration; {MOST_BYTES:,} at most")
    return from_yaml(path.read_bytes(), str(path))


def from_yaml(text: str | bytes, name: str = "configuration") -> Configuration:
    """The configuration in a YAML text. Raises ValueError as `read_configuration` does, with `name` for the file."""
    lines: dict[tuple, int] = {}
    try:
        _note_lines(yaml.compose(text, Loader=yaml.SafeLoader), (), lines, set())
        tree = yaml.safe_load(text)
    except KeyError as error:
        raise ValueError(f"{name}:{error.args[0]}") from error
    except (
        yaml.YAMLError,
        RecursionError,
        ValueError,
    ) as error:  # ValueError: not UTF-8, or a number of thousands of digits
        raise ValueError(f"{name}: not YAML ({' '.join(str(error).split())})") from error
    try:
        return Configuration.model_validate({} if tree is None else tree)
    except ValidationError as error:
        said = [(lines.get(each["loc"], 1), _in_words(each)) for each in error.errors()]
        raise ValueError("\n".join(f"{name}:{line}: {words}" for line, words in sorted(said))) from error


def _note_lines(node: yaml.Node | None, place: tuple, lines: dict[tuple, int], seen: set[int]) -> None:
    """The line of each key and list entry. Raises KeyError for a key that is there twice, of which PyYAML takes the last.

    What an alias names again is not gone through again: a few lines of aliases of aliases are millions of entries.
    """
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        named = [(key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]  # PyYAML refuses others
        inner = [(key.value, key.start_mark.line + 1, value) for key, value in named]
    elif isinstance(node, yaml.SequenceNode):
        inner = [(number, value.start_mark.line + 1, value) for number, value in enumerate(node.value)]
    else:
        return
    for name, line, value in inner:
        if (*place, name) in lines:
            raise KeyError(f"{line}: {'.'.join(map(str, (*place, name)))}: is there twice; keep one")
        lines[*place, name] = line
        _note_lines(value, (*place, name), lines, seen)


def _in_words(error: Mapping[str, Any]) -> str:
    path = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        section: Any = Configuration
        for name in error["loc"][:-1]:
            section = getattr(section, "model_fields", {})[name].annotation if isinstance(name, str) else Stage
        known = section.model_fields
        return f"{path}: unknown key; {did_you_mean(error['loc'][-1], known)}there are {', '.join(known)}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{path}={error['input']!r}: {message[0].lower()}{message[1:]}" if path else message


def override(configuration: Configuration, changes: Mapping[str, Any]) -> Configuration:
    """A copy with other values at some dotted paths, `{"optimizer.lr": 1e-4}`; a text is read as YAML.

    All are changed before any combination is checked. Raises ValueError as `read_configuration` does, without a line.
    """
    tree = configuration.model_dump()
    for path, value in changes.items():
        *sections, name = path.split(".")
        inner = tree
        for section in sections:
            inner = inner.get(section) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or name not in inner:
            raise ValueError(f"{path}: unknown key; {did_you_mean(path, paths(configuration))}see `to_yaml`")
        inner[name] = yaml.safe_load(value) if isinstance(value, str) else value
    try:
        return Configuration.model_validate(tree)
    except ValidationError as error:
        raise ValueError("\n".join(map(_in_words, error.errors()))) from error


def paths(section: BaseModel, before: str = "") -> list[str]:
    """The dotted path of every key."""
    found = []
    for name, value in section:
        found += paths(value, f"{before}{name}.") if isinstance(value, BaseModel) else [f"{before}{name}"]
    return found


def to_yaml(configuration: Configuration) -> str:
    """Every key with its value; `read_configuration` reads the same configuration from it."""
    return yaml.safe_dump(configuration.model_dump(mode="json"), sort_keys=False, default_flow_style=None, width=120)
