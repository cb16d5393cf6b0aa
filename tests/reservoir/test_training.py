"""What a step learns from: every token in turn, the states and counts of its own text, and the same draws in every run."""

import numpy as np
import pytest
import torch

from helpers.reservoir import training
from helpers.reservoir.counts import Counts
from helpers.reservoir.training import DrawnTokens

from .slow_model import END, V, stream
from .test_model import made


@pytest.fixture
def tokens(monkeypatch) -> np.ndarray:
    monkeypatch.setattr(training, "STRETCH", 9)
    return stream(3, 70)


def counted(tokens):
    """A model with the counts of these tokens."""
    model = made()
    model.counts = Counts.fit(tokens, V, END)
    return model


def drawn(tokens, **options) -> DrawnTokens:
    return DrawnTokens(tokens, counted(tokens), multiple_of=16, **{"trained": True, **options})


def text_before(tokens, place: int) -> list[int]:
    begin = max((n + 1 for n in range(place) if tokens[n] == END), default=0)
    return tokens[begin:place].tolist()


def test_an_epoch_has_every_token_once_and_every_fourth_easy_one(tokens):
    data = drawn(tokens)
    assert 0 < data.easy_S.sum() < len(tokens)
    for epoch in (0, 1):
        order = data.order(epoch)
        assert len(order) == len(data) and len(data) % 16 == 0
        hard = order[~data.easy_S[order]]
        assert {*hard} == {*np.flatnonzero(~data.easy_S)}
        assert len({*order[data.easy_S[order]]}) == -(-data.easy_S.sum() // 4)
    assert not np.array_equal(data.order(0), data.order(1))
    once = np.unique(data.order(0))
    assert data.weights_S[once].sum() == pytest.approx(len(once), rel=0.02)  # the loss keeps its scale


def test_draws_follow_from_seed_and_epoch_alone(tokens):
    assert np.array_equal(drawn(tokens).order(2), drawn(tokens).order(2))
    assert not np.array_equal(drawn(tokens).order(2), drawn(tokens, seed=1).order(2))


def test_a_batch_holds_what_reading_the_text_alone_gives(tokens):
    data, model = drawn(tokens), counted(tokens)
    for begin in (0, 160, 32):  # backwards, too, as after a resume
        places = data.order(0)[begin : begin + 16]
        batch = data.__getitems__(places)
        for row, place in enumerate(places):
            text = text_before(tokens, place)
            assert batch["labels"][row] == tokens[place]
            assert batch["windows"][row].tolist() == ([-1] * 10 + text)[-10:]
            assert batch["input_ids"][row] == (text[-1] if text else END)
            expected = torch.zeros(24)
            if text:
                expected = model.read(torch.tensor([text]))[0][0, -1]
            torch.testing.assert_close(batch["states"][row], expected, atol=1e-5, rtol=1e-4)


def test_the_loss_of_all_tokens_in_order_is_that_of_the_texts(tokens):
    data, model = drawn(tokens, trained=False), counted(tokens)
    nats = []
    for begin in range(0, len(data), 16):
        batch = data.__getitems__(data.order(0)[begin : begin + 16])
        nats.append(model(**{**batch, "weights": torch.ones(16)}).loss.item())
    ids = torch.from_numpy(np.append(END, tokens))[None].long()
    expected = model(ids, labels=ids).loss.item()
    assert np.mean(nats) == pytest.approx(expected, rel=0.02)  # the first tokens come again at the end
