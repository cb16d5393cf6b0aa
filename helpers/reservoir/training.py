"""The trainer of a run, and a Llama beside the reservoir that gets every helper the reservoir gets.

# V vocabulary · D width · B batch · T tokens of a block · W recalled tokens
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import LlamaConfig, LlamaModel, PreTrainedModel, Trainer
from transformers.modeling_outputs import CausalLMOutput

from helpers.train.trainer import TrainerMixin

from .model import Predictor, begin_at_codes, recall

LLAMA_RATE = 3e-3  # with this dropout as good on the dev stories of benchmarks/reservoir.py as 6e-3, which fails in small batches
LLAMA_LAYERS, LLAMA_HEAD = 2, 32  # layers, and the width of an attention head


class LanguageModelTrainer(TrainerMixin, Trainer):
    """transformers' Trainer with this suite's reliability."""

    def transformer(self) -> nn.Module:
        return getattr(self.model, "layers", self.model)  # the attention of a RecallLlama is in its layers


class RecallLlama(PreTrainedModel):
    """Llama layers with the reservoir's head and recall, an embedding that begins at the same codes, and as many weights.

    Attention sees its own block of tokens. The tokens before the block come by recall: a state [B, W] holds their ids plus 1.
    """

    config_class = LlamaConfig
    _tied_weights_keys = {"predictor.head.weight": "layers.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config):
        super().__init__(config)
        self.layers = LlamaModel(config)
        self.dropout = nn.Dropout(config.attention_dropout)
        self.predictor = Predictor(config.hidden_size, config.vocab_size)
        self.post_init()

    @classmethod
    def beside(cls, model, codes_VC: torch.Tensor, length: int, seed: int) -> RecallLlama:
        """A Llama with about as many trained weights as the reservoir model, drawn from `seed`."""
        ours, V = model.config, model.config.vocab_size
        # An embedding V D, and in each of the layers 4 D^2 of attention and 8 D^2 of the feed-forward part.
        weights_DD = 12 * LLAMA_LAYERS
        width = ((V * V + 4 * weights_DD * model.num_parameters()) ** 0.5 - V) / (2 * weights_DD)
        width = max(1, round(width / LLAMA_HEAD)) * LLAMA_HEAD
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=V,
            hidden_size=width,
            intermediate_size=8 * width // 3,
            num_hidden_layers=LLAMA_LAYERS,
            num_attention_heads=width // LLAMA_HEAD,
            max_position_embeddings=length,
            attention_dropout=ours.dropout,
            tie_word_embeddings=True,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=ours.eos_token_id,
            recall_tokens=ours.recall_tokens,
        )
        found = cls(config)
        begin_at_codes(found.get_input_embeddings().weight, codes_VC.float())
        nn.init.zeros_(found.predictor.trust.weight)
        return found

    def get_input_embeddings(self):
        return self.layers.embed_tokens

    def get_output_embeddings(self):
        return self.predictor.head

    def read(self, ids_BT, line_BW=None):
        """The tokens that recall proposes, their kernels, and the line after these tokens."""
        if line_BW is None:
            line_BW = torch.zeros(len(ids_BT), self.config.recall_tokens, device=ids_BT.device)
        return recall(ids_BT, line_BW, torch.ones_like(ids_BT), ids_BT == self.config.eos_token_id)

    def forward(self, input_ids, labels=None, state=None, num_items_in_batch=None, **kwargs) -> CausalLMOutput:
        x_BTD = nn.functional.rms_norm(self.get_input_embeddings()(input_ids), (self.config.hidden_size,))
        x_BTD = self.dropout(self.layers(inputs_embeds=self.dropout(x_BTD)).last_hidden_state)
        tokens_BS, kernels_BTKS, _ = self.read(input_ids, state)
        loss, logits = self.predictor(x_BTD, tokens_BS, kernels_BTKS, labels, num_items_in_batch)
        return CausalLMOutput(loss=loss, logits=logits)
