"""Which reservoirs a model has: their hyperparameters, checked, and the text notation of layers of them.

    delay:64 delays:8 quadratic:128 + tanh:1024 blocks:8 leak:0.5 + linear:512 | tanh:512

reads as two layers: three reservoirs side by side that see the tokens, and one on top that sees their features.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields

DEFAULT = "tanh:3072 blocks:24 leak:0.5"  # what benchmarks/reservoir_study.py found best on its dev stories
LARGEST_BLOCK = 8192  # units; time to find the spectral radius grows with their cube: 3 s for 2,048 on one core


@dataclass(frozen=True, kw_only=True)
class Tanh:
    """Leaky-tanh echo-state network (Jaeger 2001): s_t = (1-a) s_{t-1} + a tanh(W s_{t-1} + W_in x_t + b)."""

    size: int  # N
    blocks: int = 1  # W is block-diagonal with so many blocks; cost and memory fall by the same factor
    spectral_radius: float = 0.9  # largest |eigenvalue| of each block of W
    leak: float = 0.5  # a in (0, 1]; 1 forgets the old state except through W
    input_scaling: float = 1.0  # W_in is uniform in +- this
    bias_scaling: float = 0.1  # b is uniform in +- this
    density: float = 1.0  # share of nonzero weights within a block of W

    def __post_init__(self):
        at_least(1, size=self.size, blocks=self.blocks)
        if self.size % self.blocks:
            raise ValueError(f"blocks={self.blocks}: must divide size={self.size}")
        if self.size // self.blocks > LARGEST_BLOCK:
            raise ValueError(
                f"size={self.size}, blocks={self.blocks}: a block has {self.size // self.blocks} units, at most "
                f"{LARGEST_BLOCK} are possible; raise blocks"
            )
        _positive(1, leak=self.leak, density=self.density)
        _positive(spectral_radius=self.spectral_radius, input_scaling=self.input_scaling)
        if not 0 <= self.bias_scaling < math.inf:
            raise ValueError(f"bias_scaling={self.bias_scaling}: must be finite and not negative")


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Complex-diagonal linear reservoir (LRU, Orvieto et al. 2023; ParalESN, arXiv 2601.22296): s_t = lambda s_{t-1} + g W_in x_t.

    Time constants are log-uniform from one token to that of `spectral_radius`, phases uniform in [0, pi]; with
    g = sqrt(1 - |lambda|^2) every unit has the same variance.
    """

    size: int  # N complex units, 2 N features
    spectral_radius: float = 0.98  # |lambda| of the slowest unit, below 1; 0.98 remembers about 50 tokens
    input_scaling: float = 1.0  # W_in is uniform in +- this

    def __post_init__(self):
        at_least(1, size=self.size)
        _positive(input_scaling=self.input_scaling)
        if not 0 < self.spectral_radius < 1:
            raise ValueError(f"spectral_radius={self.spectral_radius}: a linear reservoir is stable in (0, 1) only")


@dataclass(frozen=True, kw_only=True)
class Delay:
    """The frozen codes of the last tokens, and products of pairs drawn from them: an NVAR (Gauthier et al. 2021)."""

    size: int  # floats of a token's code
    delays: int = 8  # tokens in the line, the current one included
    quadratic: int = 0  # products, each of two different linear features
    input_scaling: float = 1.0  # the code is uniform in +- this

    def __post_init__(self):
        at_least(1, size=self.size, delays=self.delays)
        pairs = self.size * self.delays * (self.size * self.delays - 1) // 2
        if not 0 <= self.quadratic <= pairs:
            raise ValueError(
                f"quadratic={self.quadratic}: must be in [0, {pairs}], the pairs of size={self.size} x delays={self.delays} "
                "features"
            )
        _positive(input_scaling=self.input_scaling)


SPECS = {"tanh": Tanh, "linear": Linear, "delay": Delay}
Layers = tuple[tuple[Tanh | Linear | Delay, ...], ...]


def parse(text: str) -> Layers:
    """Layers of reservoirs `kind:size name:value ...`, with `+` between those of a layer and `|` between layers.

    Raises ValueError, which names the reservoir and what is wrong with it.
    """
    return tuple(tuple(_parse_one(part.strip()) for part in layer.split("+")) for layer in text.split("|"))


def _parse_one(part: str):
    head, *settings = part.split() or [""]
    kind, _, size = head.partition(":")
    if kind not in SPECS or not size.isdecimal() or len(size) > 9:
        raise ValueError(f"reservoirs: {part!r} must begin with kind:size, kind one of {', '.join(SPECS)}")
    types = {field.name: {"int": int, "float": float}[field.type] for field in fields(SPECS[kind])}
    values = {"size": int(size)}
    for setting in settings:
        name, colon, value = setting.partition(":")
        if not colon or name not in types or name in values:
            raise ValueError(f"reservoirs: {setting!r} in {part!r}: write name:value, each once of {', '.join(types)}")
        try:
            values[name] = types[name](value)
        except ValueError:
            raise ValueError(f"reservoirs: {setting!r} in {part!r}: must be {types[name].__name__}") from None
    try:
        return SPECS[kind](**values)
    except ValueError as error:
        raise ValueError(f"reservoirs: {part!r}: {error}") from None


def notation(layers: Layers) -> str:
    """What `parse` reads as these layers, defaults written out: a saved model has its own if they change."""
    return " | ".join(" + ".join(_notation_of_one(spec) for spec in layer) for layer in layers)


def _notation_of_one(spec: Tanh | Linear | Delay) -> str:
    (_, size), *settings = asdict(spec).items()
    return " ".join((f"{type(spec).__name__.lower()}:{size}", *(f"{name}:{value}" for name, value in settings)))


def at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name}={value}: must be at least {least}")


def _positive(most: float = math.inf, **values: float) -> None:
    for name, value in values.items():
        if not 0 < value <= most or math.isinf(value):
            allowed = "positive and finite" if most == math.inf else f"in (0, {most}]"
            raise ValueError(f"{name}={value}: must be {allowed}")
