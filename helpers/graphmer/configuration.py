"""Configuration of a GraphMER-SE run: every key of the YAML document, its default, and what may not go together.

    configuration = read_configuration("mine.yaml")          # or a profile's name: rtx3050, t4, a100, tpu_v5e_8, cpu
    configuration = override(configuration, {"optimizer.lr": 1e-4})

The keys are those of the configuration that the GraphMER-SE project publishes; the ones it lacks say so. Defaults are
its values but where the description gives the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from helpers.graphmer.graph.splits import UNITS
from helpers.graphmer.yaml_reader import Section, read
from helpers.graphmer.yaml_reader import override as override
from helpers.parameters import expanded
from helpers.parameters import parameter as key

if TYPE_CHECKING:
    from helpers.graphmer.modeling_graphmer.configuration_graphmer import GraphMERConfig

RECIPE = Path(__file__).with_name("profiles") / "recipe.yaml"
PROFILES = {path.stem: path for path in sorted(RECIPE.parent.glob("*.yaml")) if path != RECIPE}
MOST_BYTES = 100_000  # of a document; a whole one has 4,000
MAX_LENGTHS = 4  # of a curriculum
Rate = Annotated[float, Field(ge=0, le=0.99999, description="Decay rate of a moment.")]


class Run(Section):
    seed: int = key(1337, "Seed of weights, data order, masking and dropout.", low=0, high=2**32 - 1)
    epochs: int = key(5, "Passes over the training documents, where max_steps is 0.", low=1)
    max_steps: int = key(0, "Optimizer steps of the run; 0 takes as many as the epochs have.", low=0)
    gradient_accumulation_steps: int = key(1, "Micro-batches of an optimizer step.", low=1)
    log_interval: int = key(50, "Optimizer steps from one line of the log to the next.", low=1)
    eval_interval_steps: int = key(500, "Optimizer steps from one evaluation to the next.", low=1)
    save_interval_steps: int = key(1000, "Optimizer steps from one checkpoint to the next.", low=1)
    mixed_precision: Literal["auto", "fp32", "bf16", "fp16"] = key(
        "auto", "Number format of the matrix products; auto takes the best that the device has."
    )
    deterministic: bool = key(True, "The same seed gives the same weights bit for bit; some kernels are slower for it.")


class Hardware(Section):
    device: Literal["auto", "cpu", "cuda", "tpu"] = key("auto", "Where to train; auto takes a GPU if there is one.")
    num_workers: int = key(0, "Loader processes beside the training one.", low=0, high=64)
    tpu_cores: int = key(0, "TPU chips that the run insists on; 0 takes all there are.", low=0)


class HGAT(Section):
    enabled: bool = key(True, "Without it leaves enter as the embeddings of their tokens.")
    relation_bias: bool = Field(
        default_factory=lambda hgat: hgat.get("enabled", True),
        description="Each relation has a learned vector beside its matrix; the default is the value of enabled.",
    )
    relation_dropout: float = key(0.3, "Dropout of relation matrices; GraphMERT's, not published.", low=0, high=0.9)


class Decay(Section):
    mode: Literal["multiplicative", "none"] = key("multiplicative", "How the decay changes the logits.")
    base: float = key(0.6, "Factor for a unit of distance; GraphMERT trained with 0.6.", above=0, high=0.999)


class Model(Section):
    hidden_size: int = key(768, "Numbers in the state of a token.", low=2)
    num_layers: int = key(12, "Layers of the encoder.", low=1)
    num_heads: int = key(12, "Attention heads of a layer.", low=1)
    intermediate_size: int = key(
        832, "Feed-forward width; 832 makes 80.3M weights with the other defaults, 3072, as published, 140M.", low=1
    )
    dropout: float = key(0.1, "Share of embeddings, attention weights and updates that is dropped.", low=0, high=0.9)
    positional_encoding: Literal["alibi", "none"] = key("alibi", "How the roots know their positions.")
    norm: Literal["rmsnorm", "layernorm"] = key("rmsnorm", "Normalisation before each half of a layer.")
    activation: Literal["swiglu", "gelu"] = key("swiglu", "Activation of the feed-forward half.")
    hgat: HGAT = key(HGAT(), "Graph attention from a triple's tail to its head before the first layer.")
    use_rel_attention_bias: bool = key(
        True, "Attention between a leaf and its head has a learned addend for each relation and attention head."
    )
    leaf_positions: bool = key(True, "A learned vector for each leaf slot orders its tokens; not published.")
    decay: Decay = key(Decay(), "How attention falls with the distance in the graph; the published code has none.")
    embedding_size: int = key(256, "Numbers of a query or an entity in link prediction; not published.", low=1)
    token_match: bool = key(
        True, "Copy head: in link prediction queries and names also meet token by token; not published."
    )


class Scheduler(Section):
    name: Literal["cosine", "linear", "constant"] = key("cosine", "How the learning rate goes on after the warm-up.")
    warmup_steps: int = key(1500, "Optimizer steps in which the learning rate rises linearly.", low=0)


class Optimizer(Section):
    name: Literal["adamw", "adafactor"] = key("adamw", "Adafactor keeps no moments and saves 8 bytes a weight.")
    lr: float = key(3e-4, "Peak learning rate.", above=0)
    weight_decay: float = key(0.01, "Share of a weight that is taken off in a step, times the learning rate.", low=0)
    betas: tuple[Rate, Rate] = key((0.9, 0.98), "Two decay rates of the moments; only adamw has them.")
    eps: float = key(1e-8, "Addend of the denominator; only adamw has it.", above=0)
    max_grad_norm: float = key(1.0, "Gradients are scaled down to this norm; not published.", above=0)
    scheduler: Scheduler = key(Scheduler(), "The course of the learning rate.")


class Stage(Section):
    steps: float = key(..., "Optimizer step that the stage begins with; below 1, share of the run.", low=0)
    max_seq_len: int = key(..., "Tokens of a sequence, as in training_data.max_seq_len.", low=1)


class Curriculum(Section):
    enabled: bool = key(False, "Without it all sequences have training_data.max_seq_len.")
    schedule: tuple[Stage, ...] = key((), "The first stage begins at step 0, the last has training_data.max_seq_len.")


class TrainingData(Section):
    max_seq_len: int = key(768, "Tokens of a sequence, roots and leaf slots together.", low=2)
    micro_batch_size: int = key(8, "Sequences of one forward pass on a device.", low=1)
    pack_sequences: bool = key(True, "Several short documents share a sequence, and none sees another.")
    short_to_long_curriculum: Curriculum = key(Curriculum(), "Short sequences first, longer ones later.")


class MLM(Section):
    mask_prob: float = key(0.15, "Share of the roots that is masked.", low=0, high=0.9)
    span_mask_identifiers: bool = key(True, "All tokens of an identifier are masked together, not each by itself.")
    weight: float = key(1.0, "Weight in the loss; not published.", low=0)


class MNM(Section):
    mask_prob: float = key(0.2, "Share of the leaves that is masked; at 1 none is shown.", low=0, high=1)
    type_consistent_negatives: int = key(2, "Wrong tails of the right type for each masked leaf.", low=0)
    hard_negatives: int = key(2, "Wrong tails for each masked leaf that are near the right one.", low=0)
    weight: float = key(1.0, "Weight in the loss; not published.", low=0)


class Weighted(Section):
    weight: float = key(0.5, "Weight in the loss.", low=0)


class Objectives(Section):
    mlm: MLM = key(MLM(), "Masked roots.")
    mnm: MNM = key(MNM(), "Masked leaves: the tail of a triple from its head and relation.")
    triple: Weighted = key(Weighted(), "Whether a leaf is true or a negative one; not published.")
    scoring: Weighted = key(Weighted(), "The tail from head and relation by texts alone, without code; not published.")


class LeavesPerAnchor(Section):
    positive: int = key(2, "True triples at most.", low=1)
    negatives: int = key(2, "Wrong triples at most.", low=0)


class Encoding(Section):
    leaf_tokens: int = key(7, "Slots of a leaf, a token each.", low=1)
    max_head_tokens: int = key(8, "Tokens of a head's name that a leaf looks at.", low=1)
    leaves_per_anchor: LeavesPerAnchor = key(LeavesPerAnchor(), "Leaves of one anchor.")
    max_leaves_per_sequence: int = key(10, "True and wrong leaves together.", low=1)
    entity_tokens: int = key(32, "Tokens of an entity's own text in link prediction; not published.", low=4)
    windows_per_document: int = key(
        4, "Parts of a source that is longer than the roots, each under its name; not published.", low=1
    )
    vocab_size: int = key(8192, "Tokens of the tokenizer that is trained on the code; not published.", low=512)


class OntologyConstraints(Section):
    antisymmetry_weight: float = key(0.2, "Weight of an antisymmetric relation that scores high both ways.", low=0)
    acyclicity_weight: float = key(0.2, "Weight where a sampled cycle of an acyclic relation scores high.", low=0)
    margin: float = key(0.5, "Mean cosine of a cycle's triples that is let pass; not published.", low=-1, high=1)


class Contrastive(Section):
    enabled: bool = key(True, "Without it the weight is 0.")
    temperature: float = key(0.07, "Cosines are divided by it.", above=0)
    weight: float = key(1.0, "Weight in the loss; the published code took the temperature for it.", low=0)


class Regularizers(Section):
    ontology_constraints: OntologyConstraints = key(OntologyConstraints(), "Weights in the loss of what is forbidden.")
    contrastive: Contrastive = key(Contrastive(), "A masked leaf finds its tail among the other tails of the batch.")


class Checkpointing(Section):
    activation_checkpointing: bool = key(False, "Each layer is computed again in the backward pass instead of kept.")
    save_total_limit: int = key(2, "Newest checkpoints that stay on disk.", low=1)


class Evaluation(Section):
    unit: Literal[UNITS] = key(
        "package", "Unit of source code that is held out whole, or the next smaller one that fits."
    )
    held_out: float = key(0.1, "Share of the triples for validation, and as much for test.", above=0, high=0.49)
    max_triples: int = key(2000, "Triples that an evaluation asks for; 0 takes all.", low=0)
    micro_batch_size: int = key(32, "Sequences of one forward pass on a device.", low=1)


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
    evaluation: Evaluation = key(Evaluation(), "Held-out triples; not in the published document.")

    @model_validator(mode="after")
    def _goes_together(self):
        if wrong := [said for check in (_shapes, _lengths, _devices, _tasks) for said in check(self)]:
            raise ValueError("\n".join(wrong))
        return self

    def stages(self) -> tuple[tuple[float, int], ...]:
        """(`steps` it begins with, tokens of a sequence) of each stage; one where there is no curriculum."""
        curriculum = self.training_data.short_to_long_curriculum
        if not curriculum.enabled:
            return ((0, self.training_data.max_seq_len),)
        return tuple((stage.steps, stage.max_seq_len) for stage in curriculum.schedule)

    def shape(self, max_seq_len: int) -> tuple[int, int]:
        """Roots and leaves of a sequence of so many tokens: S + G·L = `max_seq_len`."""
        leaves = self.encoding.max_leaves_per_sequence
        return max_seq_len - leaves * self.encoding.leaf_tokens, leaves

    def batch_size(self, device_count: int) -> int:
        """Sequences an optimizer step over all devices.

        Raises ValueError when the machine has not the chips that `hardware.tpu_cores` insists on.
        """
        cores = self.hardware.tpu_cores
        if cores and cores != device_count:
            remedy = f"give {device_count}, or 0 for all there are"
            raise ValueError(f"hardware.tpu_cores={cores}: the machine has {device_count}; {remedy}")
        return self.training_data.micro_batch_size * self.run.gradient_accumulation_steps * device_count

    def graphmer_config(self, vocab_size: int, num_relations: int, **found: Any) -> GraphMERConfig:
        """The model's own configuration.

        vocab_size: of the trained tokenizer.
        num_relations: of the graph, inverse ones counted.
        found: what else only tokenizer, graph and ontology can say: pad_token_id, acyclic_relations.
        """
        from helpers.graphmer.modeling_graphmer.configuration_graphmer import GraphMERConfig

        model, contrastive = self.model, self.regularizers.contrastive
        otherwise_called = {"num_layers", "num_heads", "hgat", "decay", "use_rel_attention_bias"}
        return GraphMERConfig(
            vocab_size=vocab_size,
            num_relations=num_relations,
            **model.model_dump(exclude=otherwise_called),
            num_hidden_layers=model.num_layers,
            num_attention_heads=model.num_heads,
            hgat=model.hgat.enabled,
            hgat_relation_bias=model.hgat.relation_bias,
            relation_dropout=model.hgat.relation_dropout,
            relation_attention_bias=model.use_rel_attention_bias,
            decay=model.decay.mode,
            decay_base=model.decay.base,
            **self.encoding.model_dump(include={"leaf_tokens", "max_head_tokens"}),
            **self.regularizers.ontology_constraints.model_dump(exclude={"margin"}),
            ontology_margin=self.regularizers.ontology_constraints.margin,
            temperature=contrastive.temperature,
            contrastive_weight=contrastive.weight if contrastive.enabled else 0.0,
            **{f"{name}_weight": objective.weight for name, objective in self.objectives},
            **found,
        )


def read_configuration(source: str | Path) -> Configuration:
    """The configuration in a file, of a profile, or in a YAML text.

    Raises FileNotFoundError, and ValueError `file:line: key=value: what is wrong; remedy`.
    """
    if isinstance(source, str) and ("\n" in source or ": " in source or not source.strip()):
        return read(Configuration, source, "configuration")
    path = PROFILES.get(source) or expanded("config", str(source))
    if not path.is_file():
        remedy = f"give a file or a profile: {', '.join(PROFILES)}"
        raise FileNotFoundError(f"config={str(source)!r}: nothing at {path.resolve()}; {remedy}")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path}: {path.stat().st_size:,} bytes are no configuration; {MOST_BYTES:,} at most")
    try:
        text = path.read_text(encoding="utf-8")
        if source in PROFILES and "objectives:" not in text:
            text += RECIPE.read_text(encoding="utf-8")
        return read(Configuration, text, str(path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error})") from error


def to_yaml(configuration: Configuration) -> str:
    """Every key with its value; `read_configuration` reads the same configuration from it."""
    tree = configuration.model_dump(mode="json")
    return yaml.safe_dump(tree, sort_keys=False, default_flow_style=None, width=120)


def _shapes(of: Configuration) -> Iterator[str]:
    model, encoding = of.model, of.encoding
    total = encoding.leaves_per_anchor.positive + encoding.leaves_per_anchor.negatives
    anchor = f"{encoding.leaves_per_anchor.positive=}, {encoding.leaves_per_anchor.negatives=}"
    if model.hidden_size % model.num_heads:
        yield f"{model.hidden_size=} with {model.num_heads=}: not a multiple of it; give one"
    if model.hgat.relation_bias and not model.hgat.enabled:
        yield f"{model.hgat.relation_bias=} with {model.hgat.enabled=}: is a part of it; set both to false"
    if total > encoding.max_leaves_per_sequence:
        yield f"{encoding.max_leaves_per_sequence=} with {anchor}: not even one anchor has room; give {total} or more"


def _lengths(of: Configuration) -> Iterator[str]:
    training_data, encoding = of.training_data, of.encoding
    schedule, stages = "training_data.short_to_long_curriculum.schedule", of.stages()
    lengths = {"training_data.max_seq_len": training_data.max_seq_len}
    if training_data.short_to_long_curriculum.enabled:
        lengths |= {f"{schedule}[{at}].max_seq_len": length for at, (_, length) in enumerate(stages)}
        if not stages or stages[0][0]:
            yield f"{schedule}: must begin with a stage at steps 0"
        if stages and stages[-1][1] != training_data.max_seq_len:
            said = f"{schedule}[{len(stages) - 1}].max_seq_len={stages[-1][1]}: the last stage must have"
            yield f"{said} {training_data.max_seq_len=}, which nothing reads else"
    if len(stages) > MAX_LENGTHS:
        yield f"{schedule}: has {len(stages)} stages, and each compiles anew on a TPU; give at most {MAX_LENGTHS}"
    for at, before_and_now in enumerate(pairwise(stages), start=1):
        for name, before, now in zip(("steps", "max_seq_len"), *before_and_now, strict=True):
            if now <= before:
                yield f"{schedule}[{at}].{name}={now:g}: must be more than the {before:g} before it"
        if stages[at][0] > 1 and stages[at][0] % 1:
            yield f"{schedule}[{at}].steps={stages[at][0]:g}: must be a whole number of steps, or a share below 1"
    for path, length in lengths.items():
        roots, _ = of.shape(length)
        if roots < encoding.max_head_tokens:
            leaf = f"{encoding.max_leaves_per_sequence=}, {encoding.leaf_tokens=}"
            said = f"these leave {max(roots, 0)} tokens for code, {encoding.max_head_tokens=} must fit"
            yield f"{path}={length} with {leaf}: {said}; give a longer sequence or fewer leaves"


def _devices(of: Configuration) -> Iterator[str]:
    run, hardware, optimizer = of.run, of.hardware, of.optimizer
    if run.mixed_precision == "fp16" and hardware.device in ("tpu", "cpu"):
        remedy = "use bf16" if hardware.device == "tpu" else "use fp32 or bf16"
        yield f"{run.mixed_precision=} with {hardware.device=}: fp16 with loss scaling is for GPUs; {remedy}"
    if hardware.num_workers and hardware.device == "tpu":
        said = "torch_xla's own threads feed a TPU, forked workers hang; give 0"
        yield f"{hardware.num_workers=} with {hardware.device=}: {said}"
    if hardware.tpu_cores and hardware.device != "tpu":
        yield f"{hardware.tpu_cores=} with {hardware.device=}: there are none; give 0, or device: tpu"
    for name in ("betas", "eps"):
        value, default = getattr(optimizer, name), getattr(Optimizer(), name)
        if optimizer.name == "adafactor" and value != default:
            yield f"optimizer.{name}={value} with {optimizer.name=}: Adafactor has none; leave it out"


def _tasks(of: Configuration) -> Iterator[str]:
    objectives, encoding, regularizers = of.objectives, of.encoding, of.regularizers
    mlm, mnm, triple, scoring = objectives.mlm, objectives.mnm, objectives.triple, objectives.scoring
    contrastive, negatives = regularizers.contrastive, encoding.leaves_per_anchor.negatives
    for name, objective in (("mlm", mlm), ("mnm", mnm)):
        if objective.weight and not objective.mask_prob:
            keys = f"objectives.{name}.mask_prob=0.0 with objectives.{name}.weight={objective.weight}"
            yield f"{keys}: nothing is masked, so there is nothing to learn; mask some, or set weight to 0"
    if mnm.type_consistent_negatives + mnm.hard_negatives and not (contrastive.enabled or scoring.weight):
        wrong = f"{objectives.mnm.type_consistent_negatives=}, {objectives.mnm.hard_negatives=}"
        said = "nothing learns to tell them; set them to 0, or give contrastive or scoring a weight"
        yield f"{wrong} with {regularizers.contrastive.enabled=}, {objectives.scoring.weight=}: {said}"
    if triple.weight and not negatives:
        said = "all leaves are true; ask for negatives, or set the weight to 0"
        yield f"{objectives.triple.weight=} with {encoding.leaves_per_anchor.negatives=}: {said}"
    if negatives and not triple.weight:
        said = "wrong leaves are shown and nothing learns to tell them; set both to 0 or neither"
        yield f"{encoding.leaves_per_anchor.negatives=} with {objectives.triple.weight=}: {said}"
    if contrastive.enabled and not contrastive.weight:
        said = "it is on and counts for nothing; give a weight, or set enabled to false"
        yield f"{regularizers.contrastive.weight=} with {regularizers.contrastive.enabled=}: {said}"
    for name in ("antisymmetry_weight", "acyclicity_weight"):
        if (weight := getattr(regularizers.ontology_constraints, name)) and not scoring.weight:
            said = "it forbids high scores that nothing teaches; give scoring a weight, or set this to 0"
            yield f"regularizers.ontology_constraints.{name}={weight} with {objectives.scoring.weight=}: {said}"
    if not any((mlm.weight, mnm.weight, triple.weight, contrastive.enabled, scoring.weight)):
        weights = f"{objectives.mlm.weight=}, {objectives.mnm.weight=} and {regularizers.contrastive.enabled=}"
        yield f"{weights}: no objective is left; give one a weight"
