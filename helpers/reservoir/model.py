"""A language model that counts short phrases, and corrects the counts by what a frozen random network remembers.

    state_t  = (1 - leak) state_{t-1} + leak tanh(W state_{t-1} + table[token_t])       frozen, random
    vector_t = norm(block(embedding[token_t] + projection(state_t)))                    trained
    logits_t = head(vector_t) + boosts_t + (1 + scale_t) log P_counts(next)             trained; zero beside log P_counts at first

Before the first step the model is counting. What is trained is what the counts do not know (Li et al. 2022, arXiv 2210.14431).

# B batch · T tokens · P single tokens, drawn from everywhere · G blocks of M units (N = G M) · D embedding · V vocabulary
# W tokens of a window: the last ones of the present text · K kernels of recall · F lengths of a counted context
# ... is [B, T] for texts, [P] for single tokens
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.modeling_outputs import ModelOutput

from .generation import CountingLanguageModel

HALF_LIVES, MATCHES = (8.0, 64.0), (1, 2, 3)  # kernels of recall: recency in tokens, and how many tokens must agree


class ReservoirConfig(PretrainedConfig):
    """Sizes and hyperparameters. Raises ValueError where `units` is not a multiple of `unit_blocks`."""

    model_type = "reservoir_lm"
    vocab_size: int = 2048
    units: int = 1024  # N, the size of the frozen network
    unit_blocks: int = 8  # G: W is block-diagonal, which makes a step G times cheaper
    leaks: tuple = (0.6, 0.3, 0.1, 0.03)  # of the blocks, by turns: some forget soon, some late
    spectral_radius: float = 0.9  # largest |eigenvalue| of each block of W: below 1 old input fades away
    bias_scaling: float = 0.1
    reservoir_seed: int = 0
    embedding_size: int = 192  # D
    readout_size: int = 512  # hidden units of the gated block
    window: int = 128  # W
    context_lengths: int = 4  # F
    cache_weight: float = 0.05  # share of the present text's own tokens within P_counts
    dropout: float = 0.0
    eos_token_id: int | None = None  # ends a text: nothing is carried on from there
    tie_word_embeddings: bool = True

    def __init__(self, **values):  # transformers 4, which loads saved models too, makes no constructor of the fields
        defaults = {name: getattr(ReservoirConfig, name) for name in ReservoirConfig.__annotations__}
        super().__init__(**defaults | values)
        if self.units % self.unit_blocks:
            raise ValueError(f"units={self.units}: must be a multiple of unit_blocks={self.unit_blocks}; change one")


@dataclass
class ReservoirOutput(ModelOutput):
    """`state` is what the next call goes on from: the memory [B, N], and the last tokens of the text [B, W], -1 for none."""

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    state: tuple[torch.Tensor, torch.Tensor] | None = None


# ---- the memory, which is frozen


class Reservoir(nn.Module):
    """A leaky echo-state network (Jaeger 2001). Every tensor is a buffer: drawn from a seed, saved, never trained."""

    def __init__(self, config):
        super().__init__()
        self.config, self.width = config, config.units
        G, M = config.unit_blocks, config.units // config.unit_blocks
        leaks = [config.leaks[block % len(config.leaks)] for block in range(G)]
        # Always fp32: rounded to bf16 at every token a slow leak would stall.
        self.register_buffer("table", torch.zeros(config.vocab_size, config.units))
        self.register_buffer("weight", torch.zeros(G, M, M))
        self.register_buffer("leak", torch.tensor(leaks)[:, None, None])

    @torch.no_grad()
    def draw(self, codes_VC):
        config = self.config
        generator = torch.Generator().manual_seed(config.reservoir_seed)
        C = codes_VC.shape[1]
        # 1 / sqrt(3 C): the variance that a uniform input matrix in [-1, 1] would have.
        input_CN = (3 * C) ** -0.5 * torch.randn(C, config.units, generator=generator)
        uniform_N = torch.rand(config.units, generator=generator)
        bias_N = config.bias_scaling * (2 * uniform_N - 1)
        self.table.copy_(codes_VC.float() @ input_CN + bias_N)
        weight_GMM = torch.randn(self.weight.shape, generator=generator, dtype=torch.float64)
        radius_G = torch.linalg.eigvals(weight_GMM).abs().amax(-1)
        scale_G = config.spectral_radius / radius_G
        self.weight.copy_(weight_GMM * scale_G[:, None, None])

    @torch.no_grad()
    def forward(self, ids_BT, state_BN, seen_BT, kept_BT):
        """States after every token [B, T, N]."""
        blocks = self.weight.shape[:2]
        with torch.autocast(ids_BT.device.type, enabled=False):
            # Blocks come before the batch, so that a token is one batched product.
            drive_TGBM = self.table[ids_BT].unflatten(-1, blocks).permute(1, 2, 0, 3)
            state_GBM = state_BN.unflatten(-1, blocks).transpose(0, 1)
            states_TGBM = go_through(self.step, drive_TGBM, state_GBM, seen_BT, kept_BT)
            return states_TGBM.permute(2, 0, 1, 3).flatten(2)

    def step(self, drive_GBM, state_GBM):
        update_GBM = torch.tanh(torch.baddbmm(drive_GBM, state_GBM, self.weight.mT))
        return torch.lerp(state_GBM, update_GBM, self.leak)


def go_through(step, drive, state, seen_BT, kept_BT):
    """States after every token, time first. A token that is not seen (padding) leaves the state; one that is not kept ends a text."""
    states = []
    seen_TB1 = seen_BT.T[..., None].float()
    kept_TB1 = kept_BT.T[..., None].float()
    for drive_t, seen_B1, kept_B1 in zip(drive, seen_TB1, kept_TB1, strict=True):
        state = torch.lerp(state, step(drive_t, state).float(), seen_B1) * kept_B1
        states.append(state)
    return torch.stack(states)


# ---- recall: tokens that may come again


@torch.no_grad()
def windows_of(ids_BT, line_BW, seen_BT, ends_BT):
    """The last W tokens of the text at each place [B, T, W], -1 where there is none, and those at the end [B, W]."""
    W = line_BW.shape[1]
    tokens_BT = ids_BT.masked_fill(~seen_BT | ends_BT, -1)
    tokens_BS = torch.cat((line_BW, tokens_BT), dim=1)
    text_BS = F.pad(ends_BT.long().cumsum(1), (W, 0))
    windows_BTW = tokens_BS.unfold(1, W, 1)[:, 1:]
    text_BTW = text_BS.unfold(1, W, 1)[:, 1:]
    windows_BTW = windows_BTW.masked_fill(text_BTW != text_BTW[..., -1:], -1)
    last_B = seen_BT.long().cumsum(1).argmax(1)  # before padding on the right
    last_BW = last_B[:, None].expand(-1, W)
    return windows_BTW, windows_BTW.gather(1, last_BW[:, None])[:, 0]


@torch.no_grad()
def recall(windows_W):
    """How strongly each token of a window [..., W] is proposed again [..., K, W].

    Recency decays with age (Clarkson and Robinson 1997); "match n" asks that the n tokens before it are the last n of the
    text (induction by counting).
    """
    W = windows_W.shape[-1]
    match_W = windows_W >= 0
    age_W = torch.arange(W - 1, -1, -1, device=windows_W.device)
    kernels = [match_W * 0.5 ** (age_W / half_life) for half_life in HALF_LIVES]
    for n in range(1, max(MATCHES) + 1):
        before_W = F.pad(windows_W[..., :-n], (n, 0), value=-1)
        same_W = before_W == windows_W[..., -n, None]
        match_W = match_W & same_W & (before_W >= 0)
        kernels.append(match_W / match_W.sum(-1, keepdim=True).clamp(min=1))
    return torch.stack(kernels, dim=-2).float()


# ---- the model


class GatedBlock(nn.Module):
    """x + gate * (SwiGLU(norm(x)) - x), with a gate for each token and channel."""

    def __init__(self, width, hidden, dropout):
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.gate = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_D):
        value_H, switch_H = self.up(self.norm(x_D)).chunk(2, dim=-1)
        update_D = self.dropout(self.down(F.silu(switch_H) * value_H))
        return x_D + self.gate(x_D).sigmoid() * (update_D - x_D)


class ReservoirForCausalLM(CountingLanguageModel):
    config_class = ReservoirConfig
    _tied_weights_keys = {"head.weight": "embedding.weight"}  # noqa: RUF012

    def __init__(self, config):
        super().__init__(config)
        V, D = config.vocab_size, config.embedding_size
        self.embedding = nn.Embedding(V, D)
        self.memory = Reservoir(config)
        self.projection = nn.Linear(config.units, D, bias=False)
        self.block = GatedBlock(D, config.readout_size, config.dropout)
        self.norm = nn.RMSNorm(D, eps=1e-6)
        self.out = nn.Linear(D, D, bias=False)
        self.head = nn.Linear(D, V)
        self.boost = nn.Linear(D, len(HALF_LIVES) + len(MATCHES))
        self.scale = nn.Linear(D + config.context_lengths, 1)
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
        """A new model. Memory and readout are drawn from seeds; the trained embedding begins at the tokens' codes [V, C]."""
        torch.manual_seed(seed)
        model = cls(config)
        model.memory.draw(codes_VC)
        C, D = codes_VC.shape[1], config.embedding_size
        rotation_CD = nn.init.orthogonal_(torch.empty(C, D))
        rotation_CD *= (max(C, D) / C) ** 0.5
        model.embedding.weight.data.copy_(0.02 * codes_VC.float() @ rotation_CD)
        for weight in (model.out.weight, model.boost.weight, model.scale.weight):
            nn.init.zeros_(weight)  # so that the logits are log P_counts
        return model

    def get_input_embeddings(self):
        return self.embedding

    def get_output_embeddings(self):
        return self.head

    def embedded(self, ids):
        return F.rms_norm(self.embedding(ids), (self.config.embedding_size,))

    def read(self, ids_BT, state=None, attention_mask=None):
        """The memory after every token, the window there, and the state to go on from."""
        B, T = ids_BT.shape
        if not T:
            raise ValueError("input_ids: no tokens; a text begins after the token that ends texts, so give that one")
        if state is None:
            memory_BN = torch.zeros(B, self.memory.width, device=ids_BT.device)
            line_BW = torch.full((B, self.config.window), -1, device=ids_BT.device)
        else:
            memory_BN, line_BW = state
        seen_BT = torch.ones_like(ids_BT, dtype=torch.bool)
        if attention_mask is not None:
            seen_BT = attention_mask[:, -T:] != 0
        ends_BT = seen_BT & (ids_BT == self.config.eos_token_id)
        states_BTN = self.memory(ids_BT, memory_BN, seen_BT, ~ends_BT)
        windows_BTW, line_BW = windows_of(ids_BT, line_BW, seen_BT, ends_BT)
        return states_BTN, windows_BTW, (states_BTN[:, -1], line_BW)

    def readout(self, ids, states_N):
        """The trained vector after each token [..., D]."""
        states_N = F.layer_norm(states_N, (self.config.units,))
        x_D = self.embedded(ids) + self.projection(states_N)
        return self.out(self.norm(self.block(x_D)))

    def predict(self, ids, states_N, windows_W, counted_V, totals_F):
        """Logits of the next token [..., V]."""
        x_D = self.readout(ids, states_N).float()
        tokens_W, kernels_KW = windows_W.clamp(min=0), recall(windows_W)
        with torch.autocast(x_D.device.type, enabled=False):  # these are counts, and bf16 would round them
            boosts_W = (self.boost(x_D)[..., None, :] @ kernels_KW).squeeze(-2)
            certainty = torch.cat((x_D, 0.2 * totals_F), dim=-1)
            scale_1 = 1 + self.scale(certainty)
        # The cache: the recent tokens of this text have a share of P_counts.
        recency_W = kernels_KW[..., 1, :]
        total_1 = recency_W.sum(-1, keepdim=True).clamp(min=1e-6)
        share = self.config.cache_weight
        cache_W = share * recency_W / total_1
        counted_V = ((1 - share) * counted_V).scatter_add(-1, tokens_W, cache_W)
        logits_V = self.head(x_D).float().scatter_add(-1, tokens_W, boosts_W)
        return logits_V + scale_1 * counted_V.log()

    def forward(self, input_ids, labels=None, state=None, attention_mask=None, num_items_in_batch=None, **drawn):
        """Logits of the next token, and with `labels` (-100 is ignored) the mean loss in nats a token.

        Texts [B, T] are read here, and labels are the ids themselves. A batch of training (training.py) has been read and
        counted: `windows`, `states`, `counted`, `totals`, `weights`; labels are the next tokens.
        """
        windows, states = drawn.get("windows"), drawn.get("states")
        if windows is None:
            states, windows, state = self.read(input_ids, state, attention_mask)
            counted, totals = self.look_up(windows)
            if labels is not None:
                labels = F.pad(labels[:, 1:], (0, 1), value=-100)
        else:
            counted, totals = drawn["counted"], drawn["totals"]
        logits = self.predict(input_ids, states, windows, counted, totals)
        loss = None
        if labels is not None:
            nats = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
            if "weights" in drawn:
                nats = nats * drawn["weights"].flatten()
            if num_items_in_batch is None:
                num_items_in_batch = (labels != -100).sum()
            loss = nats.sum() / num_items_in_batch
        return ReservoirOutput(loss=loss, logits=logits, state=state)


AutoConfig.register(ReservoirConfig.model_type, ReservoirConfig, exist_ok=True)
AutoModelForCausalLM.register(ReservoirConfig, ReservoirForCausalLM, exist_ok=True)
