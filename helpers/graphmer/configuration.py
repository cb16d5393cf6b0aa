"""Configuration of the encoder's run: a YAML document whose every key is checked, alone and together with the others.

    configuration = read_configuration("mine.yaml")          # or a profile's name: published, rtx3050
    configuration = override(configuration, {"optimizer.lr": 1e-4})
    configuration.optimizer.lr

`profiles/rtx3050.yaml` declares the keys: their names, types, defaults and meaning.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveInt,
    ValidationError,
    create_model,
    model_validator,
)

from helpers.machine.runtime import Runtime
from helpers.parameters import LARGEST, did_you_mean, expanded

PROFILES = {path.stem: path for path in sorted(Path(__file__).with_name("profiles").glob("*.yaml"))}
DECLARED = yaml.safe_load(PROFILES["rtx3050"].read_text(encoding="utf-8"))
LEAST_ROOTS = 8
HEAD_WEIGHT = 0.5  # of the terms that teach what wrong leaves and the ontology need
SCHEDULE = "training_data.short_to_long_curriculum.schedule"
# Keys that may have their declared value alone.
FIXED = (
    "positional_encoding",
    "norm",
    "activation",
    "use_rel_attention_bias",
    "hgat.enabled",
    "hgat.relation_bias",
    "contrastive.enabled",
    "optimizer.name",
)
MAY_BE_ZERO = ("warmup_steps", "gradient_accumulation_steps")  # as may every whole number that is declared as 0
POSITIVE = ("lr", "eps", "temperature", "mask_prob", "held_out", "decay_base")
LIMITS = {"dropout": 0.9, "mask_prob": 1, "held_out": 0.49, "decay_base": 0.999}


class Section(BaseModel):
    """One mapping of the document."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Stage(Section):
    steps: NonNegativeFloat  # optimizer step that the stage begins with; below 1, share of the run
    max_seq_len: PositiveInt  # tokens of a sequence


DecayRate = Annotated[float, Field(ge=0, lt=1)]
TYPES = {
    "run.seed": Annotated[int, Field(ge=0, lt=2**32)],
    "run.mixed_precision": Literal["auto", "fp32", "bf16", "fp16"],
    "hardware.device": Literal["auto", "cpu", "cuda", "tpu"],
    "checkpointing.activation_checkpointing": Literal["auto", True, False],
    "optimizer.scheduler.name": Literal["cosine", "linear", "constant"],
    "optimizer.betas": tuple[DecayRate, DecayRate],
    SCHEDULE: Annotated[tuple[Stage, ...], Field(min_length=1)],
}


class Configuration(Section):
    """A whole run. Raises ValueError for values that cannot be, alone or together, and names their keys."""

    if TYPE_CHECKING:

        def __getattr__(self, section: str) -> Any:
            """A section of the keys that the profile declares."""

    @model_validator(mode="after")
    def _goes_together(self):
        model, anchor = self.model, self.encoding.leaves_per_anchor
        if model.hidden_size % model.num_heads:
            raise ValueError(f"{model.hidden_size=}: must be a multiple of {model.num_heads=}; change one of them")
        anchor_leaves = anchor.positive + anchor.negatives
        leaves = self.encoding.max_leaves_per_sequence
        if leaves < anchor_leaves:
            raise ValueError(
                f"encoding.max_leaves_per_sequence={leaves}: the leaves of one anchor need more room; "
                f"give at least {anchor_leaves}"
            )
        steps, lengths = zip(*self.stages(), strict=True)
        rises = all(later > earlier for row in (steps, lengths) for earlier, later in itertools.pairwise(row))
        if not rises or steps[0] != 0 or lengths[-1] != self.training_data.max_seq_len:
            raise ValueError(
                f"{SCHEDULE}: steps must begin at 0, both must rise, and the last max_seq_len must be training_data's"
            )
        if self.roots(lengths[0]) < LEAST_ROOTS:
            raise ValueError(
                f"max_seq_len={lengths[0]} with {leaves} leaves of {self.encoding.leaf_tokens} tokens leaves no room for code; "
                "give a longer sequence or fewer leaves"
            )
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

    def batch_size(self, device_count: int) -> int:
        """Sequences of an optimizer step over all devices."""
        parts = max(1, self.run.gradient_accumulation_steps)
        return self.training_data.micro_batch_size * parts * device_count

    def require(self, machine: Runtime) -> None:
        """Raises ValueError: the configuration asks for another device, for chips that are not there, or for loaders on a TPU."""
        device, cores = self.hardware.device, self.hardware.tpu_cores
        if device not in ("auto", machine.kind.replace("xla", "tpu")):
            raise ValueError(
                f"hardware.device={device!r}: this run is on {machine.device_name} ({machine.kind}); "
                "choose that runtime, or give 'auto'"
            )
        if cores not in (0, machine.device_count):
            raise ValueError(f"hardware.tpu_cores={cores}: the machine has {machine.device_count}; give 0 for all")
        if machine.kind == "xla" and self.hardware.num_workers:
            raise ValueError(f"hardware.num_workers={self.hardware.num_workers}: forked loaders hang on a TPU; give 0")

    def graphmer_config(self, vocab_size: int, num_relations: int, **properties: Any):
        """The model's own `GraphMERConfig`. properties: what only graph and ontology can say, such as acyclic_relations."""
        from .encoder import GraphMERConfig

        model, ontology = self.model, self.regularizers.ontology_constraints
        same = {"hidden_size", "intermediate_size", "dropout", "relation_dropout", "decay_base", "embedding_size"}
        return GraphMERConfig(
            vocab_size=vocab_size,
            num_relations=num_relations,
            num_hidden_layers=model.num_layers,
            num_attention_heads=model.num_heads,
            leaf_tokens=self.encoding.leaf_tokens,
            contrastive_temperature=self.regularizers.contrastive.temperature,
            triple_weight=HEAD_WEIGHT * (self.encoding.leaves_per_anchor.negatives > 0),
            scoring_weight=HEAD_WEIGHT * (ontology.antisymmetry_weight + ontology.acyclicity_weight > 0),
            **model.model_dump(include=same),
            **ontology.model_dump(),
            **properties,
        )


def _declare(path, tree, base=Section):
    """The section whose keys, types and defaults are those of a mapping."""
    fields = {}
    for key, value in tree.items():
        inner = f"{path}.{key}".lstrip(".")
        if isinstance(value, dict):
            section = _declare(inner, value)
            fields[key] = (section, section())
        else:
            fields[key] = (_type(inner, value), Field(value, validate_default=True))
    return create_model(path or "Configuration", __base__=base, **fields)


def _type(path, value):
    """What a key may be; numbers have bounds."""
    if path in TYPES:
        return TYPES[path]
    if path.endswith(FIXED):
        return Literal[value]
    if isinstance(value, bool):
        return bool
    key = path.rpartition(".")[2]
    is_count = isinstance(value, int) and value > 0 and key not in MAY_BE_ZERO
    least = {"gt" if is_count or key in POSITIVE else "ge": 0}
    return Annotated[type(value), Field(le=LIMITS.get(key, LARGEST), **least)]


Declared: Any = _declare("", DECLARED, Configuration)


# ---- reading


def read_configuration(source: str | Path) -> Configuration:
    """The configuration in a file, or of a profile; keys that are left out have their defaults.

    Raises FileNotFoundError, and ValueError `file: key=value: what is wrong` for each thing that is wrong.
    """
    path = PROFILES.get(str(source)) or expanded("config", str(source))
    if not path.is_file():
        raise FileNotFoundError(f"config={str(source)!r}: no such file; give one, or a profile: {', '.join(PROFILES)}")
    tree = _parse(path.read_bytes(), str(path)) or {}
    return _validate(tree, f"{path}: ")


def override(configuration: Configuration, changes: Mapping[str, Any]) -> Configuration:
    """A copy with other values at some dotted paths, `{"optimizer.lr": 1e-4}`; a text is read as YAML.

    All are changed before any combination is checked. Raises ValueError as `read_configuration` does.
    """
    tree = configuration.model_dump()
    for path, value in changes.items():
        if path not in paths(configuration):
            raise ValueError(_unknown(path))
        *sections, key = path.split(".")
        section = functools.reduce(operator.getitem, sections, tree)
        section[key] = _parse(value, f"{path}={value!r}") if isinstance(value, str) else value
    return _validate(tree, "")


def _parse(text, name):
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # not UTF-8, a number of thousands of digits
        raise ValueError(f"{name}: not YAML ({' '.join(str(error).split())})") from error


def _validate(tree, prefix):
    try:
        return Declared.model_validate(tree)
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            path, message = ".".join(map(str, problem["loc"])), problem["msg"].removeprefix("Value error, ")
            if problem["type"] == "extra_forbidden":
                message = _unknown(path)
            elif path:
                message = f"{path}={problem['input']!r}: {message}"
            problems.append(prefix + message)
        raise ValueError("\n".join(problems)) from error


def _unknown(path):
    return f"{path}: unknown key; {did_you_mean(path, paths(Declared()))}`configuration.yaml` of a run shows all"


def paths(section: BaseModel, prefix: str = "") -> Iterator[str]:
    """The dotted path of every key."""
    for name, value in section:
        if isinstance(value, BaseModel):
            yield from paths(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def to_yaml(configuration: Configuration) -> str:
    """Every key with its value; `read_configuration` reads the same configuration from it."""
    return yaml.safe_dump(configuration.model_dump(mode="json"), sort_keys=False, default_flow_style=None, width=120)
