"""A reservoir language model: frozen leaky-tanh recurrence, trained readout, as a transformers causal LM.

States follow Jaeger's leaky echo-state network (GMD report 148, 2001; leak as in Lukoševičius 2012):
    s_t = (1 - a) s_{t-1} + a tanh(W s_{t-1} + W_in[x_t] + b)
with W, W_in, b drawn once from the seed in the configuration and never trained. The readout is
LayerNorm -> Linear -> GELU -> Dropout -> Linear to the vocabulary, trained with cross-entropy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ModelOutput

from helpers import xla

# B batch · T tokens · N reservoir units · R readout units · V vocabulary


class ReservoirConfig(PretrainedConfig):
    """Sizes and reservoir hyperparameters.

    Args:
        vocab_size: V.
        reservoir_size: N, frozen units.
        readout_size: R, width of the trained readout.
        spectral_radius: largest |eigenvalue| of W after scaling.
        leak: a in (0, 1]; 1 forgets the old state except through W.
        input_scaling: W_in is uniform in [-input_scaling, input_scaling].
        bias_scaling: b is uniform in [-bias_scaling, bias_scaling].
        density: share of nonzero weights in W, in (0, 1].
        dropout: on the readout's hidden layer.
        reservoir_seed: the frozen weights are a function of this seed and the sizes.
    """

    model_type = "reservoir_lm"

    def __init__(
        self,
        vocab_size: int = 50257,
        reservoir_size: int = 1024,
        readout_size: int = 256,
        spectral_radius: float = 0.95,
        leak: float = 0.6,
        input_scaling: float = 1.0,
        bias_scaling: float = 0.1,
        density: float = 0.1,
        dropout: float = 0.1,
        reservoir_seed: int = 0,
        **kwargs,
    ):
        for name, value in (
            ("vocab_size", vocab_size),
            ("reservoir_size", reservoir_size),
            ("readout_size", readout_size),
        ):
            if value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        for name, value in (("leak", leak), ("density", density)):
            if not 0 < value <= 1:
                raise ValueError(f"{name}={value}: must be in (0, 1]")
        for name, value in (
            ("spectral_radius", spectral_radius),
            ("input_scaling", input_scaling),
            ("bias_scaling", bias_scaling),
        ):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}={value}: must be finite and not negative")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout}: must be in [0, 1)")
        self.vocab_size = vocab_size
        self.reservoir_size = reservoir_size
        self.readout_size = readout_size
        self.spectral_radius = spectral_radius
        self.leak = leak
        self.input_scaling = input_scaling
        self.bias_scaling = bias_scaling
        self.density = density
        self.dropout = dropout
        self.reservoir_seed = reservoir_seed
        kwargs.setdefault("tie_word_embeddings", False)
        super().__init__(**kwargs)


def reservoir_weights(config: ReservoirConfig) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Frozen weights (W [N, N], W_in [V, N], b [N]) in fp32, drawn on the CPU from `reservoir_seed` alone.

    Raises ValueError where W has no cycle: then its spectral radius is 0, however it is scaled.
    """
    generator = torch.Generator().manual_seed(config.reservoir_seed)
    N, V = config.reservoir_size, config.vocab_size
    weight_NN = torch.randn(N, N, generator=generator, dtype=torch.float64)
    weight_NN *= torch.rand(N, N, generator=generator, dtype=torch.float64) < config.density
    radius = torch.linalg.eigvals(weight_NN).abs().max()
    if radius > 0:
        weight_NN *= config.spectral_radius / radius
    elif config.spectral_radius > 0:
        raise ValueError(
            f"density={config.density}, reservoir_size={N}: W has no cycle, so that its spectral radius is 0 and cannot "
            f"be scaled to spectral_radius={config.spectral_radius}; raise density or reservoir_size"
        )
    input_VN = (torch.rand(V, N, generator=generator) * 2 - 1) * config.input_scaling
    bias_N = (torch.rand(N, generator=generator) * 2 - 1) * config.bias_scaling
    return weight_NN.float(), input_VN, bias_N


def _leaky_step(carry, drive_BN):
    # Module-level and closed over nothing: XLA's scan caches the traced body by function, and hoists no tensor.
    state_BN, weight_NN, leak = carry
    state_BN = (1 - leak) * state_BN + leak * torch.tanh(drive_BN + state_BN @ weight_NN.T)
    return (state_BN, weight_NN, leak), state_BN


def reservoir_states(drive_BTN, weight_NN, leak: float, state_BN):
    """States after every token, [B, T, N], fp32, without autograd.

    Args:
        drive_BTN: W_in[x_t] + b for every token.
        weight_NN: W.
        leak: a.
        state_BN: state before the first token.
    """
    drive_TBN = drive_BTN.transpose(0, 1)
    if drive_BTN.device.type == "xla":
        carry = (xla.shard_batch(state_BN), weight_NN, torch.tensor(leak, device=drive_BTN.device))
        _, states_TBN = xla.scan(_leaky_step, carry, drive_TBN)
        return xla.shard_batch(states_TBN.transpose(0, 1))
    states_TBN = torch.empty_like(drive_TBN, memory_format=torch.contiguous_format)
    for t, drive_BN in enumerate(drive_TBN):
        state_BN = torch.lerp(state_BN, torch.tanh(torch.addmm(drive_BN, state_BN, weight_NN.T)), leak)
        states_TBN[t] = state_BN
    return states_TBN.transpose(0, 1)


@dataclass
class ReservoirOutput(ModelOutput):
    """loss (scalar, nats a token, when labels were given), logits [B, T, V], state [B, N] after the last token."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    state: torch.Tensor | None = None


class ReservoirForCausalLM(PreTrainedModel, GenerationMixin):
    """Reservoir language model with the interface of a transformers causal LM, streaming `generate` included."""

    config_class = ReservoirConfig
    main_input_name = "input_ids"
    _is_stateful = True  # the state cannot be rolled back, so no assisted decoding
    _no_split_modules = ()

    def __init__(self, config: ReservoirConfig):
        super().__init__(config)
        N, R = config.reservoir_size, config.readout_size
        # Buffers: frozen, saved with the weights, never touched by the optimizer.
        for name, shape in (("weight", (N, N)), ("input_weight", (config.vocab_size, N)), ("bias", (N,))):
            self.register_buffer(name, torch.zeros(shape))
        self.norm = nn.LayerNorm(N)
        self.hidden = nn.Linear(N, R)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(R, config.vocab_size)
        self.post_init()

    @classmethod
    def initialise(cls, config: ReservoirConfig, seed: int = 0) -> ReservoirForCausalLM:
        """A new model: reservoir drawn from `config.reservoir_seed`, readout from `seed`."""
        torch.manual_seed(seed)
        return cls(config)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif module is self:
            buffers = (self.weight, self.input_weight, self.bias)
            # from_pretrained marks what it loaded; that stays, and no eigenvalues are computed for it.
            if not all(getattr(buffer, "_is_hf_initialized", False) for buffer in buffers):
                for buffer, value in zip(buffers, reservoir_weights(self.config), strict=True):
                    buffer.copy_(value)

    def states(
        self,
        input_ids: torch.Tensor,
        state: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Reservoir states [B, T, N], fp32, after each of the tokens [B, T], from `state` [B, N] (default: zeros).

        Where `attention_mask` [B, >= T] (its last T count) is 0, the token drives nothing: the zero state stays zero
        through padding on the left.
        """
        with torch.no_grad(), torch.autocast(input_ids.device.type, enabled=False):
            if state is None:
                state = torch.zeros(input_ids.shape[0], self.config.reservoir_size, device=input_ids.device)
            drive_BTN = nn.functional.embedding(input_ids, self.input_weight).float() + self.bias.float()
            if attention_mask is not None:
                drive_BTN = drive_BTN * attention_mask[:, -input_ids.shape[1] :, None].to(drive_BTN.dtype)
            return reservoir_states(drive_BTN, self.weight.float(), self.config.leak, state)

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor | None = None,
        state: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs,
    ) -> ReservoirOutput:
        """Logits for the token after each position; `labels` [B, T] are `input_ids` (shifted here, -100 ignored)."""
        states_BTN = self.states(input_ids, state, attention_mask)
        hidden_BTR = self.dropout(nn.functional.gelu(self.hidden(self.norm(states_BTN.to(self.norm.weight.dtype)))))
        logits_BTV = self.head(hidden_BTR)
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits_BTV, labels, vocab_size=self.config.vocab_size, num_items_in_batch=num_items_in_batch
            )
        return ReservoirOutput(loss=loss, logits=logits_BTV, state=states_BTN[:, -1])

    # -- generation: one token a step, the state carried in place of a key-value cache --

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
        """A reservoir keeps its own state; there is no key-value cache to make."""

    def parameter_counts(self) -> dict[str, int]:
        """Trained parameters and frozen weights, counted apart."""
        return {
            "trainable": sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad),
            "frozen": sum(buffer.numel() for buffer in self.buffers()),
        }


AutoConfig.register(ReservoirConfig.model_type, ReservoirConfig, exist_ok=True)
AutoModelForCausalLM.register(ReservoirConfig, ReservoirForCausalLM, exist_ok=True)
