"""Configuration of the encoder's run: every key of the YAML document, its default, and what may not go together.

    configuration = read_configuration("mine.yaml")          # or a profile's name: published, cpu, t4, rtx3050, a100, tpu_v5e_8
    configuration = override(configuration, {"optimizer.lr": 1e-4})

The keys are those of the configuration that the GraphMER-SE project publishes (profile `published`) and a few that it lacks, which
say so. Defaults are what trains best on few products: most leaves are asked for, and wrong tails come from the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from itertools import pairwise
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, ValidationError, model_validator

from helpers.parameters import LARGEST, did_you_mean, expanded

if TYPE_CHECKING:
    from .encoder import GraphMERConfig

PROFILES = {path.stem: path for path in sorted(Path(__file__).with_name("profiles").glob("*.yaml"))}
MOST_BYTES = 100_000  # of a document; a whole one has 3,000
HEAD_WEIGHT = 0.5  # of the terms that teach what wrong leaves and the ontology need
Some = Annotated[int, Field(ge=1, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Dropout = Annotated[float, Field(ge=0, le=0.9)]
Rate = Annotated[float, Field(ge=0, le=0.99999)]


class Section(BaseModel):
    """One mapping of the document."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Run(Section):
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 1337  # of weights, data order, masking and dropout
    epochs: Some = 5  # passes over the training documents, where max_steps is 0
    max_steps: Count = 0  # optimizer steps; 0 takes as many as the epochs have. Not published
    gradient_accumulation_steps: Some = 1  # micro-batches of an optimizer step
    log_interval: Some = 50  # optimizer steps from one line of the log to the next
    eval_interval_steps: Some = 500
    save_interval_steps: Some = 1000
    mixed_precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"  # number format of the matrix products
    deterministic: bool = True  # the same seed gives the same weights bit for bit; some kernels are slower for it


class Hardware(Section):
    device: Literal["auto", "cpu", "cuda", "tpu"] = "auto"  # auto takes what there is
    num_workers: Annotated[int, Field(ge=0, le=64)] = 0  # loader processes beside the training one
    tpu_cores: Count = 0  # TPU chips that the run insists on; 0 takes all there are


class HGAT(Section):
    """Graph attention from a triple's head to its tail before the first layer."""

    enabled: bool = True  # relation and head flow into the leaves; without it leaves enter as their tokens alone
    relation_bias: bool = True  # each relation has a learned vector beside its matrix; goes with enabled


class Model(Section):
    hidden_size: Some = 768  # dimensions of a token's state
    num_layers: Some = 12
    num_heads: Some = 12  # attention heads of a layer
    intermediate_size: Some = 984  # feed-forward width; 984 makes 80M weights, 3072 as published 140M
    dropout: Dropout = 0.1  # share of embeddings, attention weights and updates that is dropped
    relation_dropout: Dropout = 0.3  # share of the relations' matrices that is dropped, as in GraphMERT. Not published
    positional_encoding: Literal["alibi", "none"] = "alibi"  # how the roots know their positions
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"  # before each half of a layer
    activation: Literal["swiglu", "gelu"] = "swiglu"  # of the feed-forward half
    hgat: HGAT = HGAT()
    use_rel_attention_bias: bool = True  # each relation has an addend on the logits between a leaf and its head
    # Attention falls by this factor for a unit of distance. Not published.
    decay_base: Annotated[float, Field(gt=0, le=0.999)] = 0.6
    embedding_size: Some = 256  # dimensions of a query or an entity in the contrastive term. Not published


class Scheduler(Section):
    name: Literal["cosine", "linear", "constant"] = "cosine"  # how the learning rate goes on after the warm-up
    warmup_steps: Count = 1500  # optimizer steps in which the learning rate rises linearly


class Optimizer(Section):
    name: Literal["adamw", "adafactor"] = "adamw"  # Adafactor keeps no moments and saves 8 bytes a weight
    lr: PositiveFloat = 3e-4  # at its peak
    weight_decay: NonNegativeFloat = 0.01  # share of a weight that a step takes off, times the learning rate
    betas: tuple[Rate, Rate] = (0.9, 0.98)  # decay rates of the two moments of adamw
    eps: PositiveFloat = 1e-8  # addend of adamw's denominator
    scheduler: Scheduler = Scheduler()


class Stage(Section):
    steps: NonNegativeFloat  # optimizer step that the stage begins with; below 1, share of the run
    max_seq_len: Some  # tokens of a sequence


class Curriculum(Section):
    """Short sequences first, longer ones later."""

    enabled: bool = False  # without it all sequences have training_data.max_seq_len
    schedule: tuple[Stage, ...] = ()  # the first stage begins at step 0, the last has training_data.max_seq_len


class TrainingData(Section):
    max_seq_len: Some = 768  # tokens of a sequence, roots and leaf slots together
    micro_batch_size: Some = 8  # sequences of one forward pass on a device
    pack_sequences: bool = True  # several short documents share a sequence, and none sees another
    short_to_long_curriculum: Curriculum = Curriculum()


class MLM(Section):
    """Masked roots."""

    mask_prob: Annotated[float, Field(gt=0, le=0.9)] = 0.15  # share of the roots that is masked
    span_mask_identifiers: bool = True  # all tokens of an identifier are masked together, not each by itself


class MNM(Section):
    """Masked leaves: the tail of a triple from its head and relation."""

    mask_prob: Annotated[float, Field(gt=0, le=1)] = 0.9  # share of the leaves that is masked; at 1 none is shown
    type_consistent_negatives: Count = 0  # wrong tails of the right type for each masked leaf
    hard_negatives: Count = 0  # wrong tails for each masked leaf that are near the right one


class Objectives(Section):
    mlm: MLM = MLM()
    mnm: MNM = MNM()


class LeavesPerAnchor(Section):
    """Leaves where one entity is named."""

    positive: Some = 8  # true triples at most
    negatives: Count = 0  # wrong triples at most; the model learns to tell them


class Encoding(Section):
    leaves_per_anchor: LeavesPerAnchor = LeavesPerAnchor()
    max_leaves_per_sequence: Some = 24  # true and wrong leaves together
    leaf_tokens: Some = 4  # slots of a leaf, a token each. Not published
    entity_tokens: Some = 20  # tokens of an entity's own text in the contrastive term. Not published
    vocab_size: Some = 8192  # tokens of the tokenizer that is trained on the code, its alphabet at least. Not published


class OntologyConstraints(Section):
    """What the ontology forbids."""

    antisymmetry_weight: NonNegativeFloat = 0.0  # of an antisymmetric relation that scores high both ways
    acyclicity_weight: NonNegativeFloat = 0.0  # where a cycle of an acyclic relation scores high


class Contrastive(Section):
    enabled: bool = True  # a masked leaf finds its tail among the other tails of the batch
    temperature: PositiveFloat = 0.07  # cosines are divided by it


class Regularizers(Section):
    ontology_constraints: OntologyConstraints = OntologyConstraints()
    contrastive: Contrastive = Contrastive()


class Checkpointing(Section):
    activation_checkpointing: bool = False  # each layer is computed again in the backward pass instead of kept


class Evaluation(Section):
    """Held-out triples. Not published."""

    held_out: Annotated[float, Field(gt=0, lt=0.5)] = 0.1  # share of the triples for validation, and as much for test
    max_triples: Count = 500  # triples that the test asks for; 0 takes all


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
    evaluation: Evaluation = Evaluation()

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
        from .encoder import GraphMERConfig

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
    model, hardware, anchor = of.model, of.hardware, of.encoding.leaves_per_anchor
    if model.hidden_size % model.num_heads:
        yield f"{model.hidden_size=}: must be a multiple of {model.num_heads=}; change one of them"
    if model.hgat.relation_bias and not model.hgat.enabled:
        yield f"{model.hgat.relation_bias=} with {model.hgat.enabled=}: the bias is a part of it; set both to false"
    if (least := anchor.positive + anchor.negatives) > (most := of.encoding.max_leaves_per_sequence):
        yield f"encoding.max_leaves_per_sequence={most}: the leaves of one anchor need more room; give at least {least}"
    if hardware.num_workers and hardware.device == "tpu":
        yield f"{hardware.num_workers=} with {hardware.device=}: threads of torch_xla load data for a TPU; give 0"
    moments = (of.optimizer.betas, of.optimizer.eps)
    if of.optimizer.name == "adafactor" and moments != (Optimizer().betas, Optimizer().eps):
        yield "optimizer.betas or eps with optimizer.name='adafactor': Adafactor has none; leave them out"
    mnm = of.objectives.mnm
    if mnm.type_consistent_negatives + mnm.hard_negatives and not of.reads_names:
        yield "objectives.mnm: without regularizers.contrastive nothing learns from its negatives; set them to 0"


def _lengths(of: Configuration) -> Iterator[str]:
    schedule, stages = "training_data.short_to_long_curriculum.schedule", of.stages()
    if not stages or stages[0][0] or stages[-1][1] != of.training_data.max_seq_len:
        yield f"{schedule}: must begin with a stage at steps 0 and end with one of training_data.max_seq_len"
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


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice, of which PyYAML takes the last."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is there twice; keep one", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def from_yaml(text: str | bytes, name: str = "configuration") -> Configuration:
    """The configuration in a YAML text. Raises ValueError as `read_configuration` does, with `name` for the file."""
    try:
        tree = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise ValueError(f"{name}:{error.problem_mark.line + 1}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # not UTF-8, a number of thousands of digits
        raise ValueError(f"{name}: not YAML ({' '.join(str(error).split())})") from error
    try:
        return Configuration.model_validate({} if tree is None else tree)
    except ValidationError as error:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        said = [(_line(root, each["loc"]), _in_words(each)) for each in error.errors()]
        raise ValueError("\n".join(f"{name}:{line}: {words}" for line, words in sorted(said))) from error


def _line(node: yaml.Node, place: tuple[str | int, ...]) -> int:
    """The line of a key or list entry, or of what it is left out of."""
    line = 1
    for name in place:
        if isinstance(node, yaml.MappingNode):
            inner = {key.value: (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)}
        else:
            inner = {number: (value, value) for number, value in enumerate(node.value)}
        if name not in inner:
            break
        key, node = inner[name]
        line = key.start_mark.line + 1
    return line


def _in_words(error: Mapping[str, Any]) -> str:
    path = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return _unknown(path)
    message = error["msg"].removeprefix("Value error, ")
    return f"{path}={error['input']!r}: {message[0].lower()}{message[1:]}" if path else message


def _unknown(path: str) -> str:
    return f"{path}: unknown key; {did_you_mean(path, paths(Configuration()))}`to_yaml` shows all"


def override(configuration: Configuration, changes: Mapping[str, Any]) -> Configuration:
    """A copy with other values at some dotted paths, `{"optimizer.lr": 1e-4}`; a text is read as YAML.

    All are changed before any combination is checked. Raises ValueError as `read_configuration` does, without a line.
    """
    tree, known = configuration.model_dump(), paths(configuration)
    for path, value in changes.items():
        if path not in known:
            raise ValueError(_unknown(path))
        *sections, name = path.split(".")
        try:
            reduce(getitem, sections, tree)[name] = yaml.safe_load(value) if isinstance(value, str) else value
        except yaml.YAMLError as error:
            raise ValueError(f"{path}={value!r}: not YAML; give a number, a word or a list") from error
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
