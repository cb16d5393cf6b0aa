"""The notation of reservoirs, read and written, and what it refuses."""

import pytest

from helpers.reservoir.architecture import Delay, Linear, Tanh, notation, parse

pytestmark = pytest.mark.once

KINDS = {
    "tanh": "tanh:24 leak:0.4",
    "blocks": "tanh:24 blocks:4 density:0.5",
    "linear": "linear:12 spectral_radius:0.9",
    "delay": "delay:5 delays:4 quadratic:30",
    "deep": "delay:6 delays:3 quadratic:8 + tanh:12 blocks:3 + linear:5 | delay:3 delays:1 + tanh:8 leak:1 | linear:7",
}


def test_the_notation_reads_as_layers_of_reservoirs():
    text = "delay:64 delays:8 quadratic:128 + tanh:1024 blocks:8 leak:0.5 + linear:512|  tanh:512 density:1e-1"
    assert parse(text) == (
        (Delay(size=64, delays=8, quadratic=128), Tanh(size=1024, blocks=8, leak=0.5), Linear(size=512)),
        (Tanh(size=512, density=0.1),),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_layers_survive_their_notation(kind):
    layers = parse(KINDS[kind])
    assert parse(notation(layers)) == layers


def test_a_notation_that_is_written_says_every_hyperparameter():
    assert notation(parse("tanh:8 leak:1e-9 | delay:4 + linear:4")) == (
        "tanh:8 blocks:1 spectral_radius:0.9 leak:1e-09 input_scaling:1.0 bias_scaling:0.1 density:1.0 | "
        "delay:4 delays:8 quadratic:0 input_scaling:1.0 + linear:4 spectral_radius:0.98 input_scaling:1.0"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"'' must begin with kind:size, kind one of tanh, linear, delay"),
        ("tanh:8 |", r"'' must begin with kind:size"),
        ("tanh:8 + + linear:8", r"'' must begin with kind:size"),
        ("gru:8", r"'gru:8' must begin with kind:size, kind one of tanh, linear, delay"),
        ("tanh", r"'tanh' must begin with kind:size"),
        ("tanh: leak:0.5", r"'tanh: leak:0\.5' must begin with kind:size"),
        ("tanh:8.5", r"'tanh:8\.5' must begin with kind:size"),
        ("tanh:-8", r"'tanh:-8' must begin with kind:size"),
        (
            "tanh:8 lr:0.5",
            r"'lr:0\.5' in 'tanh:8 lr:0\.5': write name:value, each once of size, blocks, spectral_radius, ",
        ),
        ("linear:8 leak:0.5", r"'leak:0\.5' in .* each once of size, spectral_radius, input_scaling$"),
        ("tanh:8 leak:0.5 leak:0.6", r"'leak:0\.6' in .* each once"),
        ("tanh:8 size:9", r"'size:9' in .* each once"),
        ("tanh:8 leak=0.5", r"'leak=0\.5' in .* write name:value"),
        ("tanh:8 dense", r"'dense' in 'tanh:8 dense'"),
        ("tanh:8 blocks:2.0", r"'blocks:2\.0' in .* must be int"),
        ("tanh:8 leak:half", r"'leak:half' in .* must be float"),
        ("tanh:8 leak:", r"'leak:' in .* must be float"),
        ("tanh:0", r"'tanh:0': size=0: must be at least 1"),
        ("linear:0", r"size=0: must be at least 1"),
        ("delay:0", r"size=0: must be at least 1"),
        ("tanh:10 blocks:4", r"'tanh:10 blocks:4': blocks=4: must divide size=10"),
        ("tanh:10 blocks:0", r"blocks=0: must be at least 1"),
        (
            "tanh:20000 blocks:2",
            r"size=20000, blocks=2: a block has 10000 units, at most 8192 are possible; raise blocks",
        ),
        ("tanh:8 leak:0", r"leak=0\.0: must be in \(0, 1\]"),
        ("tanh:8 leak:1.01", r"leak=1\.01: must be in \(0, 1\]"),
        ("tanh:8 leak:nan", r"leak=nan: must be in \(0, 1\]"),
        ("tanh:8 density:0", r"density=0\.0: must be in \(0, 1\]"),
        ("tanh:8 density:1.5", r"density=1\.5: must be in \(0, 1\]"),
        ("tanh:8 spectral_radius:0", r"spectral_radius=0\.0: must be positive and finite"),
        ("tanh:8 spectral_radius:-0.9", r"spectral_radius=-0\.9: must be positive and finite"),
        ("tanh:8 spectral_radius:inf", r"spectral_radius=inf: must be positive and finite"),
        ("tanh:8 input_scaling:0", r"input_scaling=0\.0: must be positive and finite"),
        ("tanh:8 bias_scaling:-1", r"bias_scaling=-1\.0: must be finite and not negative"),
        ("linear:8 spectral_radius:1", r"spectral_radius=1\.0: a linear reservoir is stable in \(0, 1\) only"),
        ("linear:8 spectral_radius:0", r"spectral_radius=0\.0: a linear reservoir is stable in \(0, 1\) only"),
        ("linear:8 input_scaling:nan", r"input_scaling=nan: must be positive and finite"),
        ("delay:8 delays:0", r"delays=0: must be at least 1"),
        ("delay:2 delays:2 quadratic:7", r"quadratic=7: must be in \[0, 6\], the pairs of size=2 x delays=2 features"),
        ("delay:2 quadratic:-1", r"quadratic=-1: must be in \[0, 120\]"),
    ],
)
def test_a_notation_that_means_nothing_is_refused_with_the_remedy(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)
