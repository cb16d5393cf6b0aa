"""A language model whose memory is never trained: one frozen echo-state network, one trained readout, and counts.

    state_t  = (1 - leak) state_{t-1} + leak tanh(W state_{t-1} + W_in code(token_t) + bias)     frozen, random
    vector_t = gated feed-forward blocks(embedding(token_t) + projection(state_t))               trained
    logits_t = head(vector_t) + trust(vector_t) times recall of the last tokens                  trained trust, frozen kernels
    P(next)  = (1 - w) softmax(logits_t) + w P_counts(next)                                      counted, when text is generated

# B batch · T tokens · G blocks of M units (N = G M) · C floats of a code · D embedding · V vocabulary
# W recalled tokens · S = W + T tokens that can be recalled · K kernels of recall
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.modeling_outputs import ModelOutput

from .counts import WithCounts
from .scan import scan, shared

HALF_LIVES, MATCHES = (8.0, 64.0), (1, 2, 3)  # kernels of recall: recency in tokens, and how many tokens must agree


class ReservoirConfig(PretrainedConfig):
    """Sizes and hyperparameters. Raises ValueError where `units` is not a multiple of `unit_blocks`."""

    model_type = "reservoir_lm"
    vocab_size: int = 4096
    units: int = 3072  # N, the size of the network
    unit_blocks: int = 24  # G: W is block-diagonal, which makes a step G times cheaper
    leak: float = 0.5  # 1 forgets the old state except through W
    spectral_radius: float = 0.9  # largest |eigenvalue| of each block of W: below 1 old input fades away
    bias_scaling: float = 0.1
    input_codes: int = 256  # C
    reservoir_seed: int = 0
    embedding_size: int = 256  # D
    readout_blocks: int = 3
    readout_size: int = 688  # hidden units of a gated block
    recall_tokens: int = 128  # W
    dropout: float = 0.1
    token_dropout: float = 0.15  # share of tokens that the reservoir misses in training (Bowman et al. 2016)
    counts_weight: float = 0.0  # w, chosen on dev
    cache_weight: float = 0.0  # share of the present text's own tokens within the counts, chosen on dev
    eos_token_id: int | None = None  # ends a text: nothing is carried on from there
    tie_word_embeddings: bool = True

    def __init__(self, **given):  # transformers 4, which loads saved models too, makes no constructor of the fields
        super().__init__(**{name: getattr(ReservoirConfig, name) for name in ReservoirConfig.__annotations__} | given)
        if self.units % self.unit_blocks:
            raise ValueError(f"units={self.units}: must be a multiple of unit_blocks={self.unit_blocks}; change one")


@dataclass
class ReservoirOutput(ModelOutput):
    """`state` [B, N + W] is what the next call goes on from: the units, then the last W token ids plus 1."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    state: torch.Tensor | None = None


# ---- the frozen part


class Reservoir(nn.Module):
    """A leaky echo-state network (Jaeger 2001). Every tensor is a buffer: drawn from a seed, saved, never trained."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        G, M = config.unit_blocks, config.units // config.unit_blocks
        # Always fp32: rounded to bf16 at every token a slow leak would stall.
        self.register_buffer("codes", torch.zeros(config.vocab_size, config.input_codes, dtype=torch.float16))
        self.register_buffer("input_map", torch.zeros(config.input_codes, config.units, dtype=torch.float32))
        self.register_buffer("weight", torch.zeros(G, M, M, dtype=torch.float32))
        self.register_buffer("bias", torch.zeros(config.units, dtype=torch.float32))

    @torch.no_grad()
    def draw(self, codes_VC):
        config, generator = self.config, torch.Generator().manual_seed(self.config.reservoir_seed)
        self.codes.copy_(codes_VC)
        # 1 / sqrt(3 C): the variance that a uniform W_in in [-1, 1] would have.
        self.input_map.copy_((3 * config.input_codes) ** -0.5 * torch.randn(self.input_map.shape, generator=generator))
        weight_GMM = torch.randn(self.weight.shape, generator=generator, dtype=torch.float64)
        radius_G = torch.linalg.eigvals(weight_GMM).abs().amax(-1)
        self.weight.copy_(weight_GMM * (config.spectral_radius / radius_G)[:, None, None])
        self.bias.copy_((torch.rand(self.bias.shape, generator=generator) * 2 - 1) * config.bias_scaling)

    @torch.no_grad()
    def forward(self, ids_BT, state_BN, seen_BT, driven_BT, begins_BT):
        """States after every token [B, T, N].

        A token that is not seen (padding) leaves the state as it is. A token that does not drive the network (token
        dropout) gives it no input. A token that begins a text finds a state of zeros.
        """
        kept_BT1, leak_BT1 = (~begins_BT)[..., None].float(), self.config.leak * seen_BT[..., None].float()
        with torch.autocast(ids_BT.device.type, enabled=False):
            drive_BTN = (self.codes[ids_BT].float() @ self.input_map + self.bias) * driven_BT[..., None]
            # Blocks come before the batch, so that a token is one batched product.
            state_GBM = shared(state_BN).unflatten(-1, self.weight.shape[:2]).transpose(0, 1)
            drive_TGBM = drive_BTN.unflatten(-1, self.weight.shape[:2]).permute(1, 2, 0, 3)
            inputs = drive_TGBM, kept_BT1.transpose(0, 1), leak_BT1.transpose(0, 1)
            states_TGBM = scan(step, (state_GBM, self.weight.mT), inputs)
            return shared(states_TGBM.permute(2, 0, 1, 3).flatten(2))


def step(carry, inputs):
    """One token. At module level and closed over nothing, since XLA's scan hoists no tensor out of the loop."""
    (state_GBM, transposed_GMM), (drive_GBM, kept_B1, leak_B1) = carry, inputs
    state_GBM = state_GBM * kept_B1
    wanted_GBM = torch.tanh(torch.baddbmm(drive_GBM, state_GBM, transposed_GMM))
    state_GBM = state_GBM + leak_B1 * (wanted_GBM - state_GBM)
    return (state_GBM, transposed_GMM), state_GBM


@torch.no_grad()
def recall(ids_BT, line_BW, seen_BT, ends_BT):
    """The tokens that may be proposed again [B, S], how strongly at each place [B, T, K, S], and the next line [B, W].

    The line holds the last W tokens of the present text as ids plus 1, and 0 where there is none.
    """
    W, T = line_BW.shape[1], ids_BT.shape[1]
    text_BS = F.pad(ends_BT[:, :-1].long().cumsum(1), (W + 1, 0))
    tokens_BS = torch.cat((line_BW, (ids_BT + 1).float() * seen_BT), dim=1)
    own_BS = tokens_BS * (text_BS == text_BS[:, -1:]) * ~ends_BT[:, -1:]
    # The line ends with the last token that was seen, so that padding on the right leaves no gap.
    padding_B1 = (seen_BT.flip(1).cumsum(1) == 0).sum(1, keepdim=True)
    line_BW = own_BS.gather(1, T + torch.arange(W, device=ids_BT.device) - padding_B1)
    return (tokens_BS - 1).clamp(min=0).long(), recall_kernels(tokens_BS, text_BS, W), line_BW


@torch.no_grad()
def recall_kernels(tokens_BS, text_BS, W):
    """How strongly each of the last W tokens is proposed again at each of the last T = S - W places: [B, T, K, S].

    Recency decays with age (Clarkson and Robinson 1997); "match n" asks that the n tokens before it are the last n of the
    text (induction by counting). tokens_BS holds ids plus 1, and 0 for no token. text_BS numbers the texts of a stream:
    nothing of another text is proposed.
    """
    S = tokens_BS.shape[1]
    place_S = torch.arange(S, device=tokens_BS.device)
    age_TS = place_S[W:, None] - place_S
    same_text_BTS = text_BS[:, W:, None] == text_BS[:, None]
    valid_BTS = ((age_TS >= 0) & (age_TS < W) & same_text_BTS & (tokens_BS > 0)[:, None]).float()
    # A token of the future has a negative age: unclamped its exponential overflows, and infinity times 0 is NaN.
    kernels = [valid_BTS * torch.exp(age_TS.clamp(min=0).float() * (-math.log(2) / half)) for half in HALF_LIVES]
    match_BTS = valid_BTS
    for n in range(1, max(MATCHES) + 1):
        before_BS = F.pad(tokens_BS, (n, 0))[:, :S] * (F.pad(text_BS, (n, 0))[:, :S] == text_BS)
        last_BT = F.pad(tokens_BS, (n - 1, 0))[:, W:S]
        equal_BTS = (before_BS[:, None] == last_BT[..., None]) & (last_BT > 0)[..., None]
        match_BTS = match_BTS * equal_BTS * (age_TS + n < W)
        if n in MATCHES:
            kernels.append(match_BTS / match_BTS.sum(-1, keepdim=True).clamp(min=1))
    return torch.stack(kernels, dim=2)


# ---- the trained part


class GatedBlock(nn.Module):
    """x + gate * (SwiGLU(norm(x)) - x), with a gate for each token and channel."""

    def __init__(self, width, hidden, dropout):
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.gate = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD):
        value_BTH, switch_BTH = self.up(self.norm(x_BTD)).chunk(2, dim=-1)
        update_BTD = self.dropout(self.down(F.silu(switch_BTH) * value_BTH))
        return x_BTD + self.gate(x_BTD).sigmoid() * (update_BTD - x_BTD)


class Predictor(nn.Module):
    """Logits or loss from the trained vectors: a linear head, and recall with a trained trust in each kernel."""

    def __init__(self, width, vocab_size):
        super().__init__()
        self.head = nn.Linear(width, vocab_size)
        self.trust = nn.Linear(width, len(HALF_LIVES) + len(MATCHES))

    def forward(self, x_BTD, tokens_BS, kernels_BTKS, labels=None, num_items_in_batch=None):
        """Loss (None without labels; in nats a token, -100 is ignored) and logits [B, T, V] (None on XLA with labels)."""
        trust_BTK = self.trust(x_BTD).float()
        with torch.autocast(x_BTD.device.type, enabled=False):  # recall counts, and bf16 would round the counts
            boost_BTS = (trust_BTK[..., None, :] @ kernels_BTKS).squeeze(-2)
        if labels is not None and x_BTD.device.type == "xla":
            return self.loss_without_scatter(x_BTD, tokens_BS, boost_BTS, labels, num_items_in_batch), None
        logits_BTV = self.head(x_BTD).float()
        logits_BTV = logits_BTV.scatter_add(2, tokens_BS[:, None].expand_as(boost_BTS), boost_BTS)
        if labels is None:
            return None, logits_BTV
        return ForCausalLMLoss(logits_BTV, labels, self.head.out_features, num_items_in_batch), logits_BTV

    def loss_without_scatter(self, x_BTD, tokens_BS, boost_BTS, labels, num_items_in_batch=None):
        """The same loss for XLA, where a scatter into [B, T, V] would gather the batch on every chip.

        The vocabulary falls into what recall proposes and the rest. The rest has the head's logits. A proposed token has them
        too, computed from its row of the head, plus the boosts of all places where it stands; its first place stands for it.
        """
        member_BV = (tokens_BS[..., None] == torch.arange(self.head.out_features, device=tokens_BS.device)).any(1)
        rest_BTV = self.head(x_BTD).float()
        same_BSS = (tokens_BS[:, :, None] == tokens_BS[:, None]).float()
        rows_BSD, bias_BS = F.embedding(tokens_BS, self.head.weight), self.head.bias[tokens_BS]
        proposed_BTS = (x_BTD @ rows_BSD.mT.to(x_BTD.dtype)).float() + bias_BS[:, None] + boost_BTS @ same_BSS
        first_BS = (same_BSS.tril(-1).sum(-1) == 0)[:, None]
        parts = (
            rest_BTV.masked_fill(member_BV[:, None], -1e30).logsumexp(-1),
            proposed_BTS.masked_fill(~first_BS, -1e30).logsumexp(-1),
        )
        total_BT = torch.stack(parts).logsumexp(0)  # XLA has no logaddexp: the host would compute it
        targets_BT = F.pad(labels[:, 1:], (0, 1), value=-100)
        ids_BT = targets_BT.clamp(min=0)
        hit_BTS = (tokens_BS[:, None] == ids_BT[..., None]).float()
        target_BT = rest_BTV.gather(-1, ids_BT[..., None]).squeeze(-1) + (hit_BTS * boost_BTS).sum(-1)
        counted_BT = (targets_BT != -100).float()
        total = counted_BT.sum() if num_items_in_batch is None else num_items_in_batch
        return ((total_BT - target_BT) * counted_BT).sum() / total


@torch.no_grad()
def begin_at_codes(weight_VD, codes_VC):
    """Puts an embedding where the tokens' codes are, rotated at random; a token without a code stays where it was drawn."""
    C, D = codes_VC.shape[1], weight_VD.shape[1]
    map_CD = nn.init.orthogonal_(torch.empty(C, D)) * (max(C, D) / C) ** 0.5
    start_VD = 0.02 * codes_VC.float() @ map_CD  # 0.02: a tied head then begins near a uniform guess
    weight_VD.copy_(torch.where(codes_VC.any(1, keepdim=True), start_VD, weight_VD))


class ReservoirForCausalLM(WithCounts, PreTrainedModel, GenerationMixin):
    config_class = ReservoirConfig
    _is_stateful = True  # the state cannot be rolled back, so no assisted decoding
    _no_split_modules = ()
    _tied_weights_keys = {"predictor.head.weight": "embedding.weight"}  # noqa: RUF012

    def __init__(self, config):
        super().__init__(config)
        V, D = config.vocab_size, config.embedding_size
        self.reservoir = Reservoir(config)
        self.embedding = nn.Embedding(V, D)
        self.projection = nn.Linear(config.units, D, bias=False)
        sizes = D, config.readout_size, config.dropout
        self.blocks = nn.ModuleList(GatedBlock(*sizes) for _ in range(config.readout_blocks))
        self.norm = nn.RMSNorm(D, eps=1e-6)
        # One mask for all tokens of a sequence; in place, since its input takes no gradient.
        self.dropout = nn.Dropout1d(config.dropout, inplace=True)
        self.predictor = Predictor(D, V)
        self.post_init()

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        else:
            super()._init_weights(module)

    @classmethod
    def initialise(cls, config, codes_VC, seed=0):
        """A new model. Reservoir and readout are drawn from seeds; the trained embedding begins at the tokens' codes [V, C]."""
        torch.manual_seed(seed)
        model = cls(config)
        model.reservoir.draw(codes_VC)
        begin_at_codes(model.embedding.weight, codes_VC)
        nn.init.zeros_(model.predictor.trust.weight)
        return model

    def get_input_embeddings(self):
        return self.embedding

    def get_output_embeddings(self):
        return self.predictor.head

    def read(self, ids_BT, state=None, attention_mask=None):
        """States [B, T, N], the tokens that recall proposes [B, S], their kernels, and the state to go on from. Not trained."""
        (B, T), N, W = ids_BT.shape, self.config.units, self.config.recall_tokens
        if state is None:
            state = torch.zeros(B, N + W, device=ids_BT.device)
        state_BN, line_BW = state.split([N, W], dim=1)
        seen_BT = torch.ones_like(ids_BT) if attention_mask is None else attention_mask[:, -T:]
        end = -1 if self.config.eos_token_id is None else self.config.eos_token_id
        ends_BT = (ids_BT == end) & (seen_BT != 0)
        driven_BT = seen_BT
        if self.training and self.config.token_dropout:  # the reservoir misses some tokens; recall does not
            driven_BT = seen_BT * (torch.rand(ids_BT.shape, device=ids_BT.device) >= self.config.token_dropout)
        states_BTN = self.reservoir(ids_BT, state_BN, seen_BT, driven_BT, F.pad(ends_BT[:, :-1], (1, 0)))
        tokens_BS, kernels_BTKS, line_BW = recall(ids_BT, line_BW, seen_BT, ends_BT)
        carried_BN = states_BTN[:, -1] * ~ends_BT[:, -1:]  # nothing is carried into another text
        return states_BTN, tokens_BS, kernels_BTKS, torch.cat((carried_BN, line_BW), dim=1)

    def readout(self, ids_BT, states_BTN):
        """The trained vector after each token [B, T, D], before the head."""
        x_BTD = F.rms_norm(self.embedding(ids_BT), (self.config.embedding_size,))
        normal_BTN = F.layer_norm(states_BTN.to(x_BTD.dtype), (self.config.units,))
        x_BTD = x_BTD + self.projection(self.dropout(normal_BTN.mT).mT)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.norm(x_BTD)

    def forward(self, input_ids, labels=None, state=None, attention_mask=None, num_items_in_batch=None, **kwargs):
        """Logits of the next token, and with `labels` (the ids themselves; -100 is ignored) the mean loss in nats a token.

        On XLA a call with labels returns no logits: the loss is computed without writing recall into [B, T, V].
        """
        states_BTN, tokens_BS, kernels_BTKS, state = self.read(input_ids, state, attention_mask)
        x_BTD = self.readout(input_ids, states_BTN)
        loss, logits_BTV = self.predictor(x_BTD, tokens_BS, kernels_BTKS, labels, num_items_in_batch)
        return ReservoirOutput(loss=loss, logits=logits_BTV, state=state)

    # Generation carries the state in place of a key-value cache, one token a step.

    def prepare_inputs_for_generation(self, input_ids, state=None, attention_mask=None, is_first_iteration=False, **_):
        if state is not None and not is_first_iteration:
            input_ids = input_ids[:, -1:]
        elif attention_mask is not None and not bool(attention_mask[:, -1].all()):
            raise ValueError("attention_mask: padding on the right is where the next token belongs; pad on the left")
        return {"input_ids": input_ids, "state": state, "attention_mask": attention_mask}

    @staticmethod
    def _reorder_cache(state, beam_idx):
        return state.index_select(0, beam_idx)

    def _update_model_kwargs_for_generation(self, outputs, model_kwargs, **kwargs):
        model_kwargs["state"] = outputs.state
        return super()._update_model_kwargs_for_generation(outputs, model_kwargs, **kwargs)

    def _prepare_cache_for_generation(self, *args, **kwargs):
        pass


AutoConfig.register(ReservoirConfig.model_type, ReservoirConfig, exist_ok=True)
AutoModelForCausalLM.register(ReservoirConfig, ReservoirForCausalLM, exist_ok=True)
