"""A reservoir language model as a transformers causal LM: frozen reservoirs remember the text, a trained readout predicts.

A saved model takes this file and those that it imports with it, to be loaded elsewhere with `trust_remote_code=True`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ModelOutput

from .architecture import DEFAULT, at_least, notation, parse
from .readout import AttentionProjection, GatedBlock, RidgeReadout
from .recall import Recall, extend_line, proposals
from .reservoirs import Reservoirs
from .scans import since_begin

# B batch · T tokens · F features of a layer · D embedding · S state floats · V vocabulary

EMBEDDING_STD = 0.02  # that of transformers; a tied head then begins near a uniform guess


class ReservoirConfig(PretrainedConfig):
    """Sizes and reservoir hyperparameters; most are parameters of the notebook and described there (parameters.py).

    Args:
        reservoirs: their notation (architecture.py); with `reservoir_seed` it gives the frozen weights.
        embedding_size: D, width of the trained vector a token.
        input_codes: C, floats of a token's code that the first reservoirs see; 0 for a one-hot vector.
        token_dropout: word dropout (Bowman et al. 2016): without it the readout learns a small text by heart.
        eos_token_id: the token that ends a text.
        reset_at_end: the token after it is read as the first of all: a text in a stream is read as it is alone.
        ridge_readout: in place of the trained parts, which are not there then (`with_ridge_readout`).

    Raises ValueError.
    """

    model_type = "reservoir_lm"

    vocab_size: int = 50257
    reservoirs: str = DEFAULT
    reservoir_seed: int = 0
    embedding_size: int = 256
    readout_blocks: int = 4
    readout_size: int = 688
    attention_heads: int = 0
    input_codes: int = 0
    recall_tokens: int = 128
    dropout: float = 0.1
    token_dropout: float = 0.0
    eos_token_id: int | None = None
    reset_at_end: bool = True
    ridge_readout: bool = False
    tie_word_embeddings: bool = True

    def __init__(self, **given):
        # transformers 4, which loads saved models, too, makes no constructor of the fields.
        super().__init__(**{name: getattr(ReservoirConfig, name) for name in ReservoirConfig.__annotations__} | given)
        at_least(1, vocab_size=self.vocab_size, embedding_size=self.embedding_size, readout_size=self.readout_size)
        at_least(0, readout_blocks=self.readout_blocks, attention_heads=self.attention_heads)
        at_least(0, input_codes=self.input_codes, recall_tokens=self.recall_tokens)
        for name, share in (("dropout", self.dropout), ("token_dropout", self.token_dropout)):
            if not 0 <= share < 1:
                raise ValueError(f"{name}={share}: must be in [0, 1)")
        self.reservoirs = notation(parse(self.reservoirs))


@dataclass
class ReservoirOutput(ModelOutput):
    """loss (scalar, nats a token, when labels were given), logits [B, T, V], state [B, S] after the last token."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    state: torch.Tensor | None = None


class ReservoirForCausalLM(PreTrainedModel, GenerationMixin):
    """The model; `generate` streams."""

    config_class = ReservoirConfig
    _is_stateful = True  # the state cannot be rolled back, so no assisted decoding
    _no_split_modules = ()
    _tied_weights_keys: ClassVar = {"head.weight": "embedding.weight"}

    def __init__(self, config: ReservoirConfig):
        super().__init__(config)
        V = config.vocab_size
        self.reservoirs = Reservoirs(parse(config.reservoirs), V, config.input_codes)
        self.embedding = self.head = self.recall = self.ridge = None
        if config.ridge_readout:
            self.ridge = RidgeReadout(self.reservoirs.features[-1], V)
        else:
            self._add_trained(config)
        self.post_init()

    def _add_trained(self, config: ReservoirConfig) -> None:
        V, D = config.vocab_size, config.embedding_size
        self.embedding = nn.Embedding(V, D)
        heads = config.attention_heads
        self.projections = nn.ModuleList(
            AttentionProjection(F, D, heads)
            if heads
            else nn.Sequential(OrderedDict(weight=nn.Linear(F, D, bias=False)))
            for F in self.reservoirs.features
        )
        depth = len(self.reservoirs.features)
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                GatedBlock(D, config.readout_size, config.dropout)
                for _ in range(config.readout_blocks * layer // depth, config.readout_blocks * (layer + 1) // depth)
            )
            for layer in range(depth)
        )
        self.norm = nn.RMSNorm(D, eps=1e-6)
        # One mask for all tokens of a sequence (variational dropout, Gal and Ghahramani 2016): 1/T of the draws. In place, where
        # another array would cost as much as the products: what it is given takes no gradient.
        self.dropout = nn.Dropout1d(config.dropout, inplace=True)
        self.head = nn.Linear(D, V)
        self.recall = Recall(D) if config.recall_tokens else None

    @classmethod
    def initialise(
        cls, config: ReservoirConfig, seed: int = 0, codes_VC: torch.Tensor | None = None
    ) -> ReservoirForCausalLM:
        """A new model, its readout drawn from `seed`.

        codes_VC: of the tokens (`codes.py`): what the first reservoirs see, and where the trained embedding begins.
        """
        torch.manual_seed(seed)
        if codes_VC is not None:
            config.input_codes = codes_VC.shape[1]
        model = cls(config)
        if codes_VC is not None:
            model.reservoirs.draw(config.reservoir_seed, codes_VC)
            begin_at_codes(model.embedding.weight, codes_VC)
        return model

    def with_ridge_readout(self, readout: RidgeReadout) -> ReservoirForCausalLM:
        """These reservoirs, shared, under a readout that was fitted on the features of their last layer (`ridge.py`)."""
        without = {"recall_tokens": 0, "dropout": 0.0, "token_dropout": 0.0, "tie_word_embeddings": False}
        config = ReservoirConfig.from_dict(self.config.to_dict() | without | {"ridge_readout": True})
        model = ReservoirForCausalLM(config)
        model.reservoirs, model.ridge = self.reservoirs, readout
        model.generation_config = self.generation_config
        return model.eval()

    def learn(self, input_ids: torch.Tensor, times: float = 1.0) -> None:
        """Learns texts [B, T] as `RidgeReadout.learn` does, without a gradient: no text that was learned before is needed.

        Raises ValueError where the readout is not that of ridge regression.
        """
        if self.ridge is None:
            raise ValueError("learn: this model's readout is trained by gradients; use one with ridge_readout=True")
        features_BTF = self.eval().features(input_ids)[0][-1]
        self.ridge.learn(features_BTF[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten(), times)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, Recall):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
        else:
            super()._init_weights(module)

    def initialize_weights(self) -> None:
        """Draws the reservoirs too, unless from_pretrained has marked them as loaded: then no eigenvalues are computed."""
        super().initialize_weights()
        saved = self.reservoirs.state_dict(keep_vars=True).values()
        if all(getattr(buffer, "_is_hf_initialized", False) for buffer in saved):
            self.reservoirs.derive()
        else:
            self.reservoirs.draw(self.config.reservoir_seed)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def get_output_embeddings(self) -> nn.Linear:
        return self.head

    def initial_state(self, batch: int) -> torch.Tensor:
        """The state before any token, zeros [B, S], where the model is, in fp32 or fp64 whatever the model's dtype.

        First what the reservoirs carry, then the last `recall_tokens` token ids, plus 1: fp32 holds them up to 2^24.
        """
        dtype = self.reservoirs.layers[0][0].input_weight.dtype
        size = self.reservoirs.state_size + self.config.recall_tokens
        return torch.zeros(batch, size, dtype=dtype, device=self.device)

    def features(self, input_ids, state=None, attention_mask=None) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Features of every layer after each of the tokens [B, T], and the whole state [B, S] after the last.

        The last T of `attention_mask` [B, >= T] count, as in `Reservoirs.forward`.
        """
        state_BS, line_BW, mask, since_BU = self._begin(input_ids, state, attention_mask)
        _, line_BW = extend_line(line_BW, input_ids, mask, since_BU)
        if self.training and self.config.token_dropout:
            seen = torch.rand(input_ids.shape, device=input_ids.device) >= self.config.token_dropout
            mask = seen if mask is None else seen * mask
        features, state_BS = self.reservoirs(input_ids, state_BS, mask, since_BU)
        return features, torch.cat((state_BS, line_BW), dim=1)

    def _begin(self, input_ids, state, attention_mask):
        """State of the reservoirs and line of tokens before these, their mask, and tokens since the text began [B, T + 1]."""
        state = self.initial_state(len(input_ids)) if state is None else state
        if state.dtype.itemsize < 4:
            raise ValueError(f"state.dtype={state.dtype}: must be float32 or float64, which hold token ids exactly")
        size, end, since_BU = self.reservoirs.state_size, self.config.eos_token_id, None
        # Generation passes the mask of all tokens. A masked end is padding and ends nothing.
        mask = None if attention_mask is None else attention_mask[:, -input_ids.shape[1] :]
        if self.config.reset_at_end and end is not None:
            since_BU = since_begin((input_ids == end) if mask is None else (input_ids == end) & (mask != 0))
        return state[:, :size], state[:, size:], mask, since_BU

    def readout(self, input_ids: torch.Tensor, features: list[torch.Tensor]) -> torch.Tensor:
        """The trained vector after each token [B, T, D], before the head."""
        x_BTD = nn.functional.rms_norm(self.embedding(input_ids), (self.config.embedding_size,))
        for features_BTF, projection, blocks in zip(features, self.projections, self.blocks, strict=True):
            # No trained scale: the projection has one, and so nothing of what is as wide as the features takes a gradient.
            normal_BTF = nn.functional.layer_norm(features_BTF.to(x_BTD.dtype), features_BTF.shape[-1:])
            x_BTD = x_BTD + projection(self.dropout(normal_BTF.mT).mT)
            for block in blocks:
                x_BTD = block(x_BTD)
        return self.norm(x_BTD)

    def forward(
        self, input_ids, labels=None, state=None, attention_mask=None, num_items_in_batch=None, **kwargs
    ) -> ReservoirOutput:
        """Logits for the token after each position; `labels` [B, T] are `input_ids` (shifted here, -100 ignored)."""
        _, line_BW, mask, since_BU = self._begin(input_ids, state, attention_mask)
        features, state = self.features(input_ids, state, attention_mask)
        if self.ridge is not None:
            logits_RV = self.ridge(features[-1].flatten(0, 1))
        else:
            x_BTD = self.readout(input_ids, features)
            # Of rows: with [B, T, V], a view, what recall adds in place would make backward copy its gradient three times.
            # XLA would write rows once more in fp32.
            logits_RV = self.head(x_BTD if x_BTD.device.type == "xla" else x_BTD.flatten(0, 1))
        del features  # backward keeps them normalised
        if self.recall is not None:
            logits_RV = self.recall(logits_RV, x_BTD, *proposals(line_BW, input_ids, mask, since_BU))
        logits_BTV = logits_RV.view(*input_ids.shape, -1)
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits_BTV, labels, vocab_size=self.config.vocab_size, num_items_in_batch=num_items_in_batch
            )
        return ReservoirOutput(loss=loss, logits=logits_BTV, state=state)

    # Generation: one token a step; the state is carried in place of a key-value cache.

    def prepare_inputs_for_generation(
        self, input_ids, state=None, attention_mask=None, is_first_iteration=False, **kwargs
    ):
        if state is not None and not is_first_iteration:
            input_ids = input_ids[:, -1:]
        return {"input_ids": input_ids, "state": state, "attention_mask": attention_mask}

    @staticmethod
    def _reorder_cache(state, beam_idx):
        return state.index_select(0, beam_idx)

    def _update_model_kwargs_for_generation(self, outputs, model_kwargs, **kwargs):
        model_kwargs["state"] = outputs.state
        return super()._update_model_kwargs_for_generation(outputs, model_kwargs, **kwargs)

    def _prepare_cache_for_generation(self, *args, **kwargs):
        pass

    def parameter_counts(self) -> dict[str, int]:
        """Trained or fitted parameters and frozen weights, counted apart, as they are saved."""
        return {
            "trainable": self.num_parameters(),
            "frozen": sum(buffer.numel() for buffer in self.reservoirs.state_dict().values()),
        }


@torch.no_grad()
def begin_at_codes(weight_VD: torch.Tensor, codes_VC: torch.Tensor, generator: torch.Generator | None = None) -> None:
    """Puts an embedding where the tokens' codes are, rotated at random; a token without a code stays where it was drawn."""
    size, width = codes_VC.shape[1], weight_VD.shape[1]
    map_CD = nn.init.orthogonal_(torch.empty(size, width), generator=generator)
    start_VD = codes_VC @ map_CD * (max(size, width) / size) ** 0.5 * EMBEDDING_STD
    weight_VD.copy_(torch.where(codes_VC.any(dim=1, keepdim=True), start_VD, weight_VD))


AutoConfig.register(ReservoirConfig.model_type, ReservoirConfig, exist_ok=True)
AutoModelForCausalLM.register(ReservoirConfig, ReservoirForCausalLM, exist_ok=True)
ReservoirConfig.register_for_auto_class()
ReservoirForCausalLM.register_for_auto_class("AutoModelForCausalLM")
