"""The transformer baseline, held against counted tensors, torch's own loss and a loop without a cache."""

import pytest
import torch

from helpers.reservoir.transformer import equal_transformer, parameter_count, sizes

# B batch · T tokens · V vocabulary
V, T, END = 300, 16, 7


def small(seed: int = 0):
    return equal_transformer(V, 50_000, T, seed=seed, eos_token_id=END)


def batch(B: int = 3) -> dict[str, torch.Tensor]:
    ids_BT = torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids_BT, "labels": ids_BT.clone()}


def counted(vocab_size: int, trainable: int) -> int:
    with torch.device("meta"):
        model = equal_transformer(vocab_size, trainable, 128, seed=0, eos_token_id=0)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def test_eight_thousand_tokens_and_five_million_parameters_make_four_layers_of_256():
    assert sizes(8811, 5_420_032) == (256, 4, 688)
    assert counted(8811, 5_420_032) == 5_420_032


@pytest.mark.parametrize(
    ("vocab_size", "trainable"),
    [
        (vocab_size, trainable)
        for vocab_size in (257, 1000, 8811, 50257)
        for trainable in (20_000, 300_000, 1_000_000, 3_000_000, 5_000_000, 13_000_000, 40_000_000)
        if 16 * vocab_size < trainable  # the thinnest embedding
    ],
)
def test_count_is_within_one_percent_of_the_asked_one(vocab_size, trainable):
    assert counted(vocab_size, trainable) == pytest.approx(trainable, rel=0.01)


def test_a_small_budget_makes_the_model_thinner_and_leaves_two_layers():
    hidden_size, layers, _ = sizes(50257, 5_000_000)
    assert (hidden_size, layers) == (96, 2)
    wider = parameter_count(50257, hidden_size + 16, 2, 8 * (hidden_size + 16) // 3)
    assert wider > 5_000_000


def test_depth_is_bounded_by_the_width():
    for trainable in (500_000, 1_000_000, 20_000_000):
        hidden_size, layers, _ = sizes(16_000, trainable)
        assert layers <= max(2, hidden_size // 16)


def test_heads_have_an_even_size_near_64_at_every_width():
    widths = set()
    for vocab_size in range(4000, 120_000, 1000):
        with torch.device("meta"):
            model = equal_transformer(vocab_size, 3_000_000, 8, seed=0, eos_token_id=0)
        width, head_size = model.config.hidden_size, model.config.head_dim
        assert head_size * model.config.num_attention_heads == width
        assert head_size % 2 == 0
        assert head_size in range(40, 105) or width < 40
        widths.add(width)
    assert len(widths) > 10


def test_embedding_is_tied_and_counted_once():
    model = small()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert parameter_count(V, *sizes(V, 50_000)) == sum(parameter.numel() for parameter in model.parameters())


def test_the_seed_decides_the_weights_and_the_callers_generator_stays():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = small(seed=1).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    again, other = small(seed=1).state_dict(), small(seed=2).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_loss_is_the_cross_entropy_of_the_next_token():
    output = small()(**batch())
    logits_BTV, labels_BT = output.logits[:, :-1], batch()["labels"][:, 1:]
    expected = torch.nn.functional.cross_entropy(logits_BTV.reshape(-1, V), labels_BT.reshape(-1))
    assert output.loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert output.past_key_values is None


def test_end_of_text_is_trained_as_an_input_like_any_other_token():
    model = small()
    ids_BT = torch.full((1, T), END)
    embedded_BTH = model.get_input_embeddings()(ids_BT)
    (gradient_VH,) = torch.autograd.grad(embedded_BTH.sum(), model.get_input_embeddings().weight)
    assert (gradient_VH[END] == T).all()


def test_generation_with_the_cache_takes_the_likeliest_token_each_time():
    model = small().eval()
    model.generation_config.eos_token_id = None  # so that it goes on
    ids_BT = batch(1)["input_ids"][:, :4]
    written = model.generate(ids_BT, max_new_tokens=8, do_sample=False, return_dict_in_generate=True)
    assert written.past_key_values is not None
    with torch.no_grad():
        for _ in range(8):
            ids_BT = torch.cat([ids_BT, model(ids_BT).logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(written.sequences, ids_BT)


def test_a_budget_below_the_smallest_model_is_refused():
    with pytest.raises(ValueError, match="trainable=500000: the smallest Llama of vocab_size=50257 has 805232"):
        equal_transformer(50257, 500_000, T, seed=0, eos_token_id=END)
    smallest = 805_232
    assert counted(50257, int(smallest / 1.049)) == smallest
    with pytest.raises(ValueError, match="trainable="):
        sizes(50257, int(smallest / 1.051))
