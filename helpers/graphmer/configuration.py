"""Configuration of the encoder's run: a YAML document whose every key is checked, alone and together with the others.

    configuration = read_configuration("mine.yaml")          # or a profile's name: published, rtx3050
    configuration = override(configuration, {"optimizer.lr": 1e-4})
    configuration.optimizer.lr

`profiles/rtx3050.yaml` declares the keys: their names, types, defaults and meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, ValidationError, create_model, model_validator

from helpers.parameters import LARGEST, did_you_mean, expanded

if TYPE_CHECKING:
    from helpers.machine.runtime import Runtime

    from .encoder import GraphMERConfig

PROFILES = {path.stem: path for path in sorted(Path(__file__).with_name("profiles").glob("*.yaml"))}
DECLARED = yaml.safe_load(PROFILES["rtx3050"].read_text(encoding="utf-8"))
MOST_BYTES = 100_000  # of a document; a whole one has 5,000
LEAST_ROOTS = 8
HEAD_WEIGHT = 0.5  # of the terms that teach what wrong leaves and the ontology need
# What a key may be, beside its declared type: one of some words; its declared value alone; above 0; at most a number.
CHOICES = {
    "run.mixed_precision": ("auto", "fp32", "bf16", "fp16"),
    "hardware.device": ("auto", "cpu", "cuda", "tpu"),
    **dict.fromkeys(("checkpointing.activation_checkpointing", "hardware.compile_layers"), ("auto", True, False)),
    "optimizer.scheduler.name": ("cosine", "linear", "constant"),
}
FIXED = ("positional_encoding", "norm", "activation", "use_rel_attention_bias", "hgat.enabled", "hgat.relation_bias")
FIXED += ("contrastive.enabled", "optimizer.name")
MAY_BE_ZERO = ("seed", "warmup_steps", "gradient_accumulation_steps")  # as may every whole number that is declared as 0
POSITIVE = ("lr", "eps", "temperature", "mask_prob", "held_out", "decay_base")
MOST = {"dropout": 0.9, "mask_prob": 1, "held_out": 0.49, "decay_base": 0.999, "num_workers": 64, "seed": 2**32 - 1}


class Section(BaseModel):
    """One mapping of the document."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Stage(Section):
    steps: NonNegativeFloat  # optimizer step that the stage begins with; below 1, share of the run
    max_seq_len: Annotated[int, Field(ge=1, le=LARGEST)]  # tokens of a sequence


class Document(Section):
    """A whole run. Raises ValueError for values that cannot be, alone or together, and names their keys."""

    @model_validator(mode="after")
    def _goes_together(self):
        problems = [*_combinations(self), *_lengths(self)]
        if problems:
            raise ValueError("\n".join(problems))
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
        """Raises ValueError: the configuration asks for another device, or for chips that are not there."""
        device, cores = self.hardware.device, self.hardware.tpu_cores
        families = {"auto": machine.family, "tpu": "xla"}
        if families.get(device, device) != machine.family:
            raise ValueError(
                f"hardware.device={device!r}: this run is on {machine.device_name} ({machine.kind}); "
                "choose that runtime, or give 'auto'"
            )
        if cores and cores != machine.device_count:
            remedy = f"give {machine.device_count}, or 0 for all"
            raise ValueError(f"hardware.tpu_cores={cores}: the machine has {machine.device_count}; {remedy}")

    def graphmer_config(self, vocab_size: int, num_relations: int, **properties: Any) -> GraphMERConfig:
        """The model's own configuration. properties: what only graph and ontology can say, such as acyclic_relations."""
        from .encoder import GraphMERConfig

        model, ontology = self.model, self.regularizers.ontology_constraints
        same = ("hidden_size", "intermediate_size", "dropout", "relation_dropout", "decay_base", "embedding_size")
        return GraphMERConfig(
            vocab_size=vocab_size,
            num_relations=num_relations,
            num_hidden_layers=model.num_layers,
            num_attention_heads=model.num_heads,
            leaf_tokens=self.encoding.leaf_tokens,
            contrastive_temperature=self.regularizers.contrastive.temperature,
            triple_weight=HEAD_WEIGHT * (self.encoding.leaves_per_anchor.negatives > 0),
            scoring_weight=HEAD_WEIGHT * (ontology.antisymmetry_weight + ontology.acyclicity_weight > 0),
            **model.model_dump(include=set(same)),
            **ontology.model_dump(),
            **properties,
        )


def _declare(path: str, tree: Mapping[str, Any], base: type[Section] = Section) -> type[Section]:
    """The section whose keys, types and defaults are those of a mapping."""
    fields = {}
    for key, value in tree.items():
        inner = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            section = _declare(inner, value)
            fields[key] = (section, section())
        else:
            fields[key] = (_type(inner, key, value), Field(value, validate_default=True))
    return create_model(path or "Configuration", __base__=base, **fields)


def _type(path: str, key: str, value: Any) -> Any:
    if key == "schedule":
        return tuple[Stage, ...]
    if key == "betas":
        rate = Annotated[float, Field(ge=0, lt=1)]
        return tuple[rate, rate]
    if path.endswith(FIXED):
        return Literal[value]
    if path in CHOICES:
        return Literal[CHOICES[path]]
    if isinstance(value, bool):
        return bool
    most = MOST.get(key, LARGEST)
    if isinstance(value, int):
        return Annotated[int, Field(ge=0 if value == 0 or key in MAY_BE_ZERO else 1, le=most)]
    if key in POSITIVE:
        return Annotated[float, Field(gt=0, le=most)]
    return Annotated[float, Field(ge=0, le=most)]


def _combinations(of: Document) -> Iterator[str]:
    model, hardware, anchor = of.model, of.hardware, of.encoding.leaves_per_anchor
    if model.hidden_size % model.num_heads:
        yield f"{model.hidden_size=}: must be a multiple of {model.num_heads=}; change one of them"
    least, most = anchor.positive + anchor.negatives, of.encoding.max_leaves_per_sequence
    if least > most:
        yield f"encoding.max_leaves_per_sequence={most}: the leaves of one anchor need more room; give at least {least}"
    if hardware.num_workers and hardware.device == "tpu":
        yield f"{hardware.num_workers=} with {hardware.device=}: threads of torch_xla load data for a TPU; give 0"


def _lengths(of: Document) -> Iterator[str]:
    schedule, stages = "training_data.short_to_long_curriculum.schedule", of.stages()
    if not stages or stages[0][0] or stages[-1][1] != of.training_data.max_seq_len:
        yield f"{schedule}: must begin with a stage at steps 0 and end with one of training_data.max_seq_len"
    if any(now[0] <= before[0] or now[1] <= before[1] for before, now in pairwise(stages)):
        yield f"{schedule}: steps and max_seq_len must rise from stage to stage"
    for _, length in stages:
        if of.roots(length) < LEAST_ROOTS:
            leaves = f"{of.encoding.max_leaves_per_sequence} leaves of {of.encoding.leaf_tokens} tokens"
            yield f"max_seq_len={length} with {leaves} leaves no room for code; give a longer sequence or fewer leaves"


Configuration = _declare("", DECLARED, Document)


# ---- reading


def read_configuration(source: str | Path) -> Configuration:
    """The configuration in a file, or of a profile; keys that are left out have their defaults.

    Raises FileNotFoundError, and ValueError `file: key=value: what is wrong` for each thing that is wrong.
    """
    path = PROFILES.get(str(source)) or expanded("config", str(source))
    if not path.is_file():
        raise FileNotFoundError(f"config={str(source)!r}: no such file; give one, or a profile: {', '.join(PROFILES)}")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path}: {path.stat().st_size:,} bytes are no configuration; {MOST_BYTES:,} at most")
    return from_yaml(path.read_bytes(), str(path))


def from_yaml(text: str | bytes, name: str = "configuration") -> Configuration:
    """The configuration in a YAML text. Raises ValueError as `read_configuration` does, with `name` for the file."""
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # not UTF-8, a number of thousands of digits
        raise ValueError(f"{name}: not YAML ({' '.join(str(error).split())})") from error
    return _validate({} if tree is None else tree, f"{name}: ")


def override(configuration: Configuration, changes: Mapping[str, Any]) -> Configuration:
    """A copy with other values at some dotted paths, `{"optimizer.lr": 1e-4}`; a text is read as YAML.

    All are changed before any combination is checked. Raises ValueError as `read_configuration` does.
    """
    tree, known = configuration.model_dump(), paths(configuration)
    for path, value in changes.items():
        if path not in known:
            raise ValueError(_unknown(path))
        *sections, name = path.split(".")
        mapping = tree
        for section in sections:
            mapping = mapping[section]
        try:
            mapping[name] = yaml.safe_load(value) if isinstance(value, str) else value
        except yaml.YAMLError as error:
            raise ValueError(f"{path}={value!r}: not YAML; give a number, a word or a list") from error
    return _validate(tree, "")


def _validate(tree: Any, before: str) -> Configuration:
    try:
        return Configuration.model_validate(tree)
    except ValidationError as error:
        raise ValueError("\n".join(before + _in_words(each) for each in error.errors())) from error


def _in_words(error: Mapping[str, Any]) -> str:
    path = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return _unknown(path)
    message = error["msg"].removeprefix("Value error, ")
    return f"{path}={error['input']!r}: {message[0].lower()}{message[1:]}" if path else message


def _unknown(path: str) -> str:
    return f"{path}: unknown key; {did_you_mean(path, paths(Configuration()))}`to_yaml` shows all"


def paths(section: BaseModel, before: str = "") -> list[str]:
    """The dotted path of every key."""
    keys = []
    for name, value in section:
        keys += paths(value, f"{before}{name}.") if isinstance(value, BaseModel) else [f"{before}{name}"]
    return keys


def to_yaml(configuration: Configuration) -> str:
    """Every key with its value; `read_configuration` reads the same configuration from it."""
    return yaml.safe_dump(configuration.model_dump(mode="json"), sort_keys=False, default_flow_style=None, width=120)
