"""What was measured of legal chain-of-thought fine-tuning."""

from evidence import declarations

from helpers.legal.parameters import LegalParameters


def headline() -> str:
    """In a few words, for README.md."""
    return "Real labelled law beside counting words: being measured"


def parameters() -> str:
    """Of data, model and questions, from the declarations."""
    names = ("set_aside_broken", "layout", "max_length", "packing", "test_records", "max_new_tokens")
    return declarations.table(LegalParameters, names=names)
