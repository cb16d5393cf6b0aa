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
import weakref
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import ModelOutput

from .counts import WithCounts

try:
    from helpers.machine import xla
except ImportError:  # a saved model is loaded without this suite
    xla = None

HALF_LIVES, MATCHES = (8.0, 64.0), (1, 2, 3)  # kernels of recall: recency in tokens, and how many tokens must agree
GRAPH_CAPABILITY = (7, 0)  # CUDA graphs are used from here on (Volta)
GRAPHS = weakref.WeakKeyDictionary()  # of each reservoir, by shape; not in the module, which is copied and saved


class ReservoirConfig(PretrainedConfig):
    """Sizes and hyperparameters. Raises ValueError where `units` is not a multiple of `unit_blocks`."""

    model_type = "reservoir_lm"

    def __init__(
        self,
        vocab_size=4096,
        units=3072,  # N, the size of the network
        unit_blocks=24,  # G: W is block-diagonal, which makes a step G times cheaper
        leak=0.5,  # 1 forgets the old state except through W
        spectral_radius=0.9,  # largest |eigenvalue| of each block of W: below 1 old input fades away
        input_scaling=1.0,
        bias_scaling=0.1,
        input_codes=256,  # C
        reservoir_seed=0,
        embedding_size=256,  # D
        readout_blocks=3,
        readout_size=688,  # hidden units of a gated block
        recall_tokens=128,  # W
        dropout=0.1,
        token_dropout=0.15,  # share of the tokens that the reservoir does not see in training (Bowman et al. 2016)
        counts_weight=0.0,  # w, chosen on dev
        cache_weight=0.0,  # share of the present text's own tokens within the counts, chosen on dev
        tie_word_embeddings=True,
        **kwargs,
    ):
        if units % unit_blocks:
            raise ValueError(f"units={units}: must be a multiple of unit_blocks={unit_blocks}; change one of them")
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)
        self.vocab_size, self.units, self.unit_blocks = vocab_size, units, unit_blocks
        self.leak, self.spectral_radius = leak, spectral_radius
        self.input_scaling, self.bias_scaling = input_scaling, bias_scaling
        self.input_codes, self.reservoir_seed = input_codes, reservoir_seed
        self.embedding_size, self.readout_blocks, self.readout_size = embedding_size, readout_blocks, readout_size
        self.recall_tokens, self.dropout, self.token_dropout = recall_tokens, dropout, token_dropout
        self.counts_weight, self.cache_weight = counts_weight, cache_weight


@dataclass
class ReservoirOutput(ModelOutput):
    """`state` [B, N + W] goes on after the last token: the units, then the last W token ids plus 1."""

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
        # 1 / sqrt(3 C): the variance that a uniform W_in in [-scaling, scaling] would have.
        scale = config.input_scaling * (3 * config.input_codes) ** -0.5
        self.input_map.copy_(scale * torch.randn(self.input_map.shape, generator=generator))
        weight_GMM = torch.randn(self.weight.shape, generator=generator, dtype=torch.float64)
        radius_G = torch.linalg.eigvals(weight_GMM).abs().amax(-1)
        self.weight.copy_(weight_GMM * (config.spectral_radius / radius_G)[:, None, None])
        self.bias.copy_((torch.rand(self.bias.shape, generator=generator) * 2 - 1) * config.bias_scaling)

    @torch.no_grad()
    def forward(self, ids_BT, state_BN, seen_BT, driven_BT, begins_BT):
        """States after every token [B, T, N].

        A token that is not seen (padding) leaves the state as it is, one that does not drive the network (token dropout) is
        missing in it, and one that begins a text finds no state.
        """
        with torch.autocast(ids_BT.device.type, enabled=False):
            drive_BTN = (self.codes[ids_BT].float() @ self.input_map + self.bias) * driven_BT[..., None]
            kept_BT1 = (~begins_BT)[..., None].float()
            leak_BT1 = self.config.leak * seen_BT[..., None].float()
            by_time = [tensor.transpose(0, 1) for tensor in (drive_BTN, kept_BT1, leak_BT1)]
            if xla is not None and ids_BT.device.type == "xla":  # one While loop, whatever T is
                _, states_TBN = xla.scan(step, (xla.shard_batch(state_BN), self.weight), tuple(by_time))
                return xla.shard_batch(states_TBN.transpose(0, 1))
            if self._may_graph(ids_BT):
                return self._graphed(state_BN, *by_time).transpose(0, 1)
            return over_time(self.weight, state_BN, *by_time).transpose(0, 1)

    def _may_graph(self, ids_BT):
        """Whether the loop runs as one CUDA graph, which spares a launch for each operation of each token."""
        if ids_BT.device.type != "cuda" or ids_BT.shape[1] == 1 or torch.cuda.is_current_stream_capturing():
            return False
        return torch.cuda.get_device_capability(ids_BT.device) >= GRAPH_CAPABILITY

    def _graphed(self, *given):
        """`over_time` by one launch: captured when a shape is first seen, then replayed on copies of the inputs."""
        shape = (self.weight.data_ptr(), *given[1].shape)
        graphs = GRAPHS.setdefault(self, {})
        if shape not in graphs:
            while len(graphs) >= 4:  # training and evaluation have one shape each; a graph keeps its memory
                del graphs[next(iter(graphs))]
            inputs, stream = [tensor.contiguous().clone() for tensor in given], torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):  # what is made once, such as cuBLAS's workspace, must not be in the graph
                over_time(self.weight, *inputs)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                states_TBN = over_time(self.weight, *inputs)
            graphs[shape] = graph, inputs, states_TBN
        graph, inputs, states_TBN = graphs[shape]
        for kept, new in zip(inputs, given, strict=True):
            kept.copy_(new)
        graph.replay()
        return states_TBN.clone()  # the next replay overwrites what it gave


def over_time(weight_GMM, state_BN, drive_TBN, kept_TB1, leak_TB1):
    """`step` for every token: states [T, B, N]."""
    carry, states = (state_BN, weight_GMM), []
    for inputs in zip(drive_TBN.unbind(), kept_TB1.unbind(), leak_TB1.unbind(), strict=True):
        carry, state_BN = step(carry, inputs)
        states.append(state_BN)
    return torch.stack(states)


def step(carry, inputs):
    """One token. At module level and closed over nothing, since XLA's scan hoists no tensor out of the loop."""
    (state_BN, weight_GMM), (drive_BN, kept_B1, leak_B1) = carry, inputs
    state_BN = state_BN * kept_B1
    state_BGM = state_BN.unflatten(-1, weight_GMM.shape[:2])
    product_BN = torch.einsum("bgm,gnm->bgn", state_BGM, weight_GMM).flatten(1)
    state_BN = state_BN + leak_B1 * (torch.tanh(drive_BN + product_BN) - state_BN)
    return (state_BN, weight_GMM), state_BN


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
    _tied_weights_keys = {"head.weight": "embedding.weight"}  # noqa: RUF012

    def __init__(self, config):
        super().__init__(config)
        V, D, K = config.vocab_size, config.embedding_size, len(HALF_LIVES) + len(MATCHES)
        self.reservoir = Reservoir(config)
        self.embedding = nn.Embedding(V, D)
        self.projection = nn.Linear(config.units, D, bias=False)
        self.blocks = nn.ModuleList(
            GatedBlock(D, config.readout_size, config.dropout) for _ in range(config.readout_blocks)
        )
        self.norm = nn.RMSNorm(D, eps=1e-6)
        self.dropout = nn.Dropout1d(config.dropout)  # one mask for all tokens of a sequence
        self.head = nn.Linear(D, V)
        self.trust = nn.Linear(D, K)  # how much each kernel of recall counts here
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
        nn.init.zeros_(model.trust.weight)
        return model

    def get_input_embeddings(self):
        return self.embedding

    def get_output_embeddings(self):
        return self.head

    def read(self, ids_BT, state=None, attention_mask=None):
        """States [B, T, N], the tokens that recall proposes [B, S], their kernels, and the state to go on from. Not trained."""
        (B, T), N, W = ids_BT.shape, self.config.units, self.config.recall_tokens
        if state is None:
            state = torch.zeros(B, N + W, device=ids_BT.device)
        state_BN, line_BW = state.split([N, W], dim=1)
        seen_BT = torch.ones_like(ids_BT) if attention_mask is None else attention_mask[:, -T:]
        end = -1 if self.config.eos_token_id is None else self.config.eos_token_id
        ends_BT = (ids_BT == end) & (seen_BT != 0)
        begins_BT = F.pad(ends_BT[:, :-1], (1, 0))
        text_BS = F.pad(begins_BT.long().cumsum(1), (W, 0))
        tokens_BS = torch.cat((line_BW, (ids_BT + 1).float() * seen_BT), dim=1)
        driven_BT = seen_BT
        if self.training and self.config.token_dropout:  # the reservoir misses some tokens; recall does not
            driven_BT = seen_BT * (torch.rand(ids_BT.shape, device=ids_BT.device) >= self.config.token_dropout)
        states_BTN = self.reservoir(ids_BT, state_BN, seen_BT, driven_BT, begins_BT)
        # After the end of a text nothing is carried on, and of the line only tokens of the present text are. The line ends
        # with the last token that was seen, so that padding on the right leaves no gap.
        open_B1 = ~ends_BT[:, -1:]
        line_BS = tokens_BS * (text_BS == text_BS[:, -1:]) * open_B1
        padding_B1 = (seen_BT.flip(1).cumsum(1) == 0).sum(1, keepdim=True)
        place_BW = T + torch.arange(W, device=ids_BT.device) - padding_B1
        line_BW = line_BS.gather(1, place_BW)
        proposed = (tokens_BS - 1).clamp(min=0).long(), recall_kernels(tokens_BS, text_BS, W)
        return states_BTN, *proposed, torch.cat((states_BTN[:, -1] * open_B1, line_BW), dim=1)

    def readout(self, ids_BT, states_BTN):
        """The trained vector after each token [B, T, D], before the head."""
        x_BTD = F.rms_norm(self.embedding(ids_BT), (self.config.embedding_size,))
        normal_BTN = F.layer_norm(states_BTN.to(x_BTD.dtype), (self.config.units,))
        x_BTD = x_BTD + self.projection(self.dropout(normal_BTN.mT).mT)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.norm(x_BTD)

    def forward(
        self, input_ids, labels=None, state=None, attention_mask=None, num_items_in_batch=None, **kwargs
    ) -> ReservoirOutput:
        """Logits of the next token, and with `labels` (the ids themselves; -100 is ignored) the mean loss in nats a token.

        On XLA a call with labels returns no logits: the loss is computed without writing recall into [B, T, V].
        """
        states_BTN, tokens_BS, kernels_BTKS, state = self.read(input_ids, state, attention_mask)
        x_BTD = self.readout(input_ids, states_BTN)
        boost_BTS = (self.trust(x_BTD).float()[..., None, :] @ kernels_BTKS).squeeze(-2)
        if labels is not None and input_ids.device.type == "xla":
            targets_BT = F.pad(labels[:, 1:], (0, 1), value=-100)
            loss = self.loss_without_scatter(x_BTD, tokens_BS, boost_BTS, targets_BT, num_items_in_batch)
            return ReservoirOutput(loss=loss, state=state)
        logits_BTV = self.head(x_BTD).float()
        logits_BTV = logits_BTV.scatter_add(2, tokens_BS[:, None].expand_as(boost_BTS), boost_BTS)
        loss = None
        if labels is not None:
            sizes = {"vocab_size": self.config.vocab_size, "num_items_in_batch": num_items_in_batch}
            loss = self.loss_function(logits_BTV, labels, **sizes)
        return ReservoirOutput(loss=loss, logits=logits_BTV, state=state)

    def loss_without_scatter(self, x_BTD, tokens_BS, boost_BTS, targets_BT, num_items_in_batch=None):
        """The cross-entropy of `forward` for XLA, where a scatter into [B, T, V] would gather the batch on every chip.

        The vocabulary falls into what recall proposes and the rest. The rest has the head's logits. A proposed token has them
        too, computed from its row of the head, plus the boosts of all places where it stands; its first place stands for it.
        """
        member_BV = (tokens_BS[..., None] == torch.arange(self.config.vocab_size, device=tokens_BS.device)).any(1)
        rest_BTV = self.head(x_BTD).float()
        same_BSS = (tokens_BS[:, :, None] == tokens_BS[:, None]).float()
        rows_BSD, bias_BS = F.embedding(tokens_BS, self.head.weight), self.head.bias[tokens_BS]
        proposed_BTS = (x_BTD @ rows_BSD.mT.to(x_BTD.dtype)).float() + bias_BS[:, None] + boost_BTS @ same_BSS
        first_BS = (same_BSS.tril(-1).sum(-1) == 0)[:, None]
        total_BT = torch.logaddexp(
            rest_BTV.masked_fill(member_BV[:, None], -1e30).logsumexp(-1),
            proposed_BTS.masked_fill(~first_BS, -1e30).logsumexp(-1),
        )
        ids_BT = targets_BT.clamp(min=0)
        hit_BTS = (tokens_BS[:, None] == ids_BT[..., None]).float()
        target_BT = rest_BTV.gather(-1, ids_BT[..., None]).squeeze(-1) + (hit_BTS * boost_BTS).sum(-1)
        counted_BT = (targets_BT != -100).float()
        total = counted_BT.sum() if num_items_in_batch is None else num_items_in_batch
        return ((total_BT - target_BT) * counted_BT).sum() / total

    # Generation carries the state in place of a key-value cache, one token a step.

    def prepare_inputs_for_generation(
        self, input_ids, state=None, attention_mask=None, is_first_iteration=False, **kwargs
    ):
        if state is not None and not is_first_iteration:
            input_ids = input_ids[:, -1:]
        elif attention_mask is not None and not bool(attention_mask[:, -1].all()):
            raise ValueError(
                "attention_mask: a text is padded on the right, where the next token belongs; pad on the left (padding_side='left')"
            )
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
