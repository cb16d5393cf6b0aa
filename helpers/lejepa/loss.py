"""LeJEPA: the two views of a text are drawn to their centre, and all texts to an isotropic Gaussian.

    loss = (1 - w) invariance + w SIGReg + c contrastive                      w sigreg_weight · c contrastive_weight

    invariance    mean squared distance of the views of a text to their centre
    SIGReg        how far all embeddings are from N(0, I), by a test on random one-dimensional slices: nothing collapses
    contrastive   cross-entropy of a text's second view among the second views of the batch (MultipleNegativesRankingLoss)

Balestriero and LeCun, LeJEPA (arXiv 2511.08544). The paper has the first two terms. From a pretrained search model they alone
lower its quality (docs/lejepa.md), so the third is on by default; every log says which share of the gradient each term has.
SIGReg acts on the embedding that is saved, not on a projection that is thrown away.

# V views · N texts · K dimensions of an embedding · M slices · P knots above 0
"""

import random
import re

import numpy as np
import torch
import torch.distributed as dist
from sentence_transformers.base.losses import CachedLossMixin
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, normalize

try:
    from helpers.machine import xla
except ImportError:  # outside this suite
    xla = None

LAST_KNOT, KNOTS = 3.0, 17  # as in the paper's code; the paper's text integrates to 5
SCALE = 20.0  # inverse temperature of the cosines, the default of MultipleNegativesRankingLoss
CROP_WORDS = (6, 24)  # of a view that stands in for a heading

# A word is what stands between white space, or a character of a script that is written without any.
_SPACELESS = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(rf"[{_SPACELESS}]|[^\s{_SPACELESS}]+")


# ---- views


def views(heading: str, body: str, draw: random.Random) -> tuple[str, str]:
    """Two views of a passage: its heading and its body, or where it has no heading a short crop and the whole."""
    return heading or crop(body, draw), body


def crop(text: str, draw: random.Random) -> str:
    """A random span of `CROP_WORDS` words of `text`, white space within it as it was; at most half of the text."""
    spans = [match.span() for match in _WORD.finditer(text)]
    most = min(CROP_WORDS[1], max(1, len(spans) // 2))
    length = draw.randint(min(CROP_WORDS[0], most), most)
    begin = draw.randint(0, max(0, len(spans) - length))
    return text[spans[begin][0] : spans[begin + length - 1][1]] if spans else text


# ---- SIGReg
#
# For each slice a, a random unit vector, and u_n = <z_n, a>, the Epps-Pulley statistic (Biometrika 70, 1983) compares the
# characteristic function of the u_n with that of N(0, 1), exp(-t^2 / 2), at knots t_k from 0 to LAST_KNOT:
#
#     C_k = mean_n cos(t_k u_n)   S_k = mean_n sin(t_k u_n)   phi_k = exp(-t_k^2 / 2)   w_k: weights of the trapezoid rule
#     T   = 2 N sum_k w_k phi_k [(C_k - phi_k)^2 + S_k^2]


def knots() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """t_k, phi_k and 2 w_k phi_k [P], in fp64. The knot at 0 is left out: C = 1 and S = 0 there whatever the data."""
    t_P = torch.linspace(0, LAST_KNOT, KNOTS, dtype=torch.float64)
    phi_P = torch.exp(-(t_P**2) / 2)
    weight_P = 2 * t_P[1] * phi_P
    weight_P[-1] /= 2
    return t_P[1:], phi_P[1:], weight_P[1:]


def plain_sigreg(embeddings_NK: torch.Tensor, slices_MK: torch.Tensor) -> torch.Tensor:
    """The formula above as it stands, for autograd: the reference of the fast form, which keeps far less memory."""
    t_P, phi_P, weight_P = (each.to(embeddings_NK) for each in knots())
    angle_PNM = t_P[:, None, None] * (embeddings_NK @ slices_MK.T)
    cos_PM, sin_PM = angle_PNM.cos().mean(1), angle_PNM.sin().mean(1)
    distance_PM = (cos_PM - phi_P[:, None]) ** 2 + sin_PM**2
    return len(embeddings_NK) * (weight_P[:, None] * distance_PM).sum(0).mean()


class SIGReg(nn.Module):
    """Mean Epps-Pulley statistic over random directions that are drawn anew from (seed, step).

    Samples of N(0, I) have 1.0525 on average, whatever N is (`floor`); a full collapse has 0.402 N.
    256 slices give the value to 3 %. Every process must have the same seed.
    """

    def __init__(self, slices: int = 256, seed: int = 0):
        super().__init__()
        t_P, phi_P, weight_P = knots()
        self.number, self.seed = slices, seed
        self.floor = float((weight_P * (1 - phi_P**2)).sum())  # E |psi_N - psi|^2 = (1 - |psi|^2) / N
        for name, values_P in (("knots", t_P), ("target", phi_P), ("weights", weight_P)):
            self.register_buffer(name, values_P[:, None].float(), persistent=False)

    def slices(self, dimensions: int, step: int) -> torch.Tensor:
        """Unit rows [M, K] in fp32 on the CPU: the generator of a device would draw others on each kind of device."""
        seed = int(np.random.SeedSequence((self.seed, step)).generate_state(1)[0])
        return normalize(torch.randn(self.number, dimensions, generator=torch.Generator().manual_seed(seed)), dim=1)

    def forward(self, embeddings_VNK: torch.Tensor, step: int) -> torch.Tensor:
        """SIGReg of each view's texts by themselves, averaged over the views; a scalar in fp32, or fp64 for fp64 embeddings.

        The projection may be in bf16, all that follows is not: cosines averaged in bf16 are 18 % off at N = 65,536. Over
        several processes value and gradient are those of the batch that they share: the sums are all-reduced, and the
        local gradient is multiplied by their number, which the averaging of DDP takes out again.
        """
        slices_MK = self.slices(embeddings_VNK.shape[-1], step)
        if embeddings_VNK.is_cuda:  # a copy out of memory that is not pinned would wait for the GPU
            slices_MK = slices_MK.pin_memory().to(embeddings_VNK.device, non_blocking=True)
        projection_VNM = linear(embeddings_VNK, slices_MK.to(embeddings_VNK.device, embeddings_VNK.dtype))
        with torch.autocast(embeddings_VNK.device.type, enabled=False):
            return _EppsPulley.apply(projection_VNM, self)


class _EppsPulley(torch.autograd.Function):
    """The statistic with its gradient in closed form: autograd would keep cos and sin at every knot.

    dT/du_n = 2 sum_k w_k t_k [S_k cos(t_k u_n) - (C_k - phi_k) sin(t_k u_n)]
    """

    @staticmethod
    def forward(ctx, projection_VNM, sigreg):
        circles = list(_circles(projection_VNM))
        rows = projection_VNM.shape[1]
        sums_VP2M = sum(_sums_at_knots(*circle) for circle in circles)
        # A tensor on XLA is the whole batch already.
        ctx.processes = 1 if projection_VNM.device.type == "xla" else processes()
        if ctx.processes > 1:
            message = torch.cat((sums_VP2M.flatten(), sums_VP2M.new_tensor([rows])))
            dist.all_reduce(message)
            sums_VP2M, rows = message[:-1].view_as(sums_VP2M), message[-1]
        cos_VPM, sin_VPM = (sums_VP2M / rows).unbind(2)
        excess_VPM = cos_VPM - sigreg.target
        ctx.sigreg, ctx.dtype = sigreg, projection_VNM.dtype
        ctx.save_for_backward(excess_VPM, sin_VPM, *sum(circles, ()))
        return (rows * sigreg.weights * (excess_VPM.square() + sin_VPM.square())).sum(1).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        excess_VPM, sin_VPM, *kept = ctx.saved_tensors
        V, _, M = sin_VPM.shape
        factor_P1 = gradient * (2 * ctx.processes / (V * M)) * ctx.sigreg.weights * ctx.sigreg.knots
        slope_VPM, drop_VPM = factor_P1 * sin_VPM, factor_P1 * -excess_VPM
        circles = zip(kept[::2], kept[1::2], strict=True)
        parts = [_series(*circle, slope_VPM, drop_VPM).to(ctx.dtype) for circle in circles]
        return torch.cat(parts, dim=1), None


def _circles(projection_VNM):
    """cos and sin of a = t_1 u, on a CPU in pieces along N that stay in its cache; other devices fuse by themselves."""
    V, N, M = projection_VNM.shape
    rows = max(1, 2**16 // (V * M)) if projection_VNM.device.type == "cpu" else N
    wide = torch.promote_types(projection_VNM.dtype, torch.float32)
    for part in projection_VNM.split(rows, dim=1):
        angle = part.to(wide) * (LAST_KNOT / (KNOTS - 1))
        yield angle.cos(), angle.sin()


def _sums_at_knots(cos_1, sin_1):
    """Sums over N of cos(k a) and sin(k a), k = 1 ... P, [V, P, 2, M].

    Chebyshev's recurrence in steps of two, cos((k + 2) a) = 2 cos(2 a) cos(k a) - cos((k - 2) a), sin alike, among the odd
    and among the even knots: steps of one have four times the error. Written for these terms times +, +, -, -, ... the sign
    of the last term is a plus, so that a knot takes one fused product in place where a rotation takes four.
    """
    twice = sin_1.square().mul_(-4).add_(2)  # 2 cos(2 a)
    now = {1: torch.stack((cos_1, sin_1)), 0: torch.stack((twice / 2, 2 * sin_1 * cos_1))}
    before = {1: torch.stack((cos_1, -sin_1)), 0: torch.stack((torch.ones_like(cos_1), torch.zeros_like(sin_1)))}
    sums = []
    for knot in range(1, KNOTS):
        odd, place = knot % 2, (knot + 1) // 2
        if place > 1:
            moved = before[odd].addcmul_(twice, now[odd], value=1 if place % 2 else -1)
            before[odd], now[odd] = now[odd], moved
        total = now[odd].sum(2)
        sums.append(-total if place // 2 % 2 else total)
    return torch.stack(sums, 2).permute(1, 2, 0, 3)


def _series(cos_1, sin_1, cos_VPM, sin_VPM):
    """sum_k p_k cos(k a) + q_k sin(k a) = Re sum_k (p_k - i q_k) exp(i a)^k, by Horner's rule."""
    coefficients = list(zip(cos_VPM[:, :, None].unbind(1), sin_VPM[:, :, None].unbind(1), strict=True))
    last_cos, last_sin = coefficients.pop()
    real, imaginary = last_cos.expand_as(cos_1), -last_sin.expand_as(cos_1)
    for p, q in reversed(coefficients):
        real, imaginary = (
            torch.addcmul(p, real, cos_1).addcmul_(imaginary, sin_1, value=-1),
            torch.addcmul(-q, real, sin_1).addcmul_(imaginary, cos_1),
        )
    return (real * cos_1).addcmul_(imaginary, sin_1, value=-1)


def processes() -> int:
    """How many processes hold rows of the batch."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


# ---- the whole loss


class LeJEPALoss(CachedLossMixin, nn.Module):
    """The loss above for a SentenceTransformer that does not normalise its embeddings.

        loss = LeJEPALoss(model, sigreg_weight=0.05, contrastive_weight=1.0)
        SentenceTransformerTrainer(model, train_dataset=pairs, loss=loss)

    A batch has columns of texts: the views. With `mini_batch_size` above 0 it is embedded in parts of that many texts and
    loss and gradient stay those of the whole batch (gradient caching, Gao et al., arXiv 2101.06983).
    """

    def __init__(
        self, model, *, sigreg_weight: float, contrastive_weight: float, seed: int = 0, mini_batch_size: int = 0
    ):
        super().__init__()
        if type(model[-1]).__name__ == "Normalize":
            raise ValueError(
                "the model ends in Normalize, and unit vectors look collapsed to SIGReg: put a linear head after it"
            )
        self.model, self.mini_batch_size, self.step = model, mini_batch_size, 0
        self.weights = {"invariance": 1 - sigreg_weight, "sigreg": sigreg_weight, "contrastive": contrastive_weight}
        self.sigreg = SIGReg(seed=seed)
        self.ranking = MultipleNegativesRankingLoss(model, scale=SCALE, gather_across_devices=processes() > 1)
        self._totals = None

    def forward(self, sentence_features, labels=None):
        features = list(sentence_features)
        if not self.mini_batch_size:
            return self.calculate_loss([[self.model(column)["sentence_embedding"]] for column in features])
        if features[0]["input_ids"].device.type != "xla":
            return self.forward_cached(features)
        return self.calculate_loss([[embed_on_xla(self.model, column, self.mini_batch_size)] for column in features])

    def calculate_loss(self, reps, labels=None, *, with_backward=False):
        """The loss from embeddings: for each view a list of parts [n, K]. with_backward: as CachedLossMixin asks for."""
        embeddings_VNK = torch.stack([torch.cat(parts) for parts in reps])
        terms = self.terms(embeddings_VNK)
        loss = sum(terms.values())
        if self.training:
            self.step += 1
            seen = torch.stack([*terms.values(), torch.ones_like(loss)]).detach()
            self._totals = (torch.zeros_like(seen) if self._totals is None else self._totals) + seen
        if with_backward:
            loss.backward()
            loss = loss.detach()
        return loss

    def terms(self, embeddings_VNK) -> dict[str, torch.Tensor]:
        """Each term with its weight; those of weight 0 are left out. In evaluation SIGReg has the slices of step 0."""
        step = self.step if self.training else 0
        terms = {
            "invariance": lambda z_VNK: (z_VNK - z_VNK.mean(0)).square().mean(),
            "sigreg": lambda z_VNK: self.sigreg(z_VNK, step),
            "contrastive": lambda z_VNK: self.ranking.compute_loss_from_embeddings([*z_VNK], None),
        }
        with torch.autocast(embeddings_VNK.device.type, enabled=False):
            z_VNK = embeddings_VNK.float()
            return {name: weight * terms[name](z_VNK) for name, weight in self.weights.items() if weight}

    def gradient_shares(self, columns) -> dict[str, float]:
        """Which share of the gradient at the embeddings of a batch each term has: its length over the sum of the lengths."""
        with torch.no_grad():
            embeddings_VNK = torch.stack([self.model(dict(column))["sentence_embedding"] for column in columns])
        embeddings_VNK = embeddings_VNK.float().requires_grad_()
        terms = self.terms(embeddings_VNK)
        lengths = {name: float(torch.autograd.grad(term, embeddings_VNK)[0].norm()) for name, term in terms.items()}
        return {name: length / sum(lengths.values()) for name, length in lengths.items()}

    def start_terms(self, device) -> None:
        """On XLA, before the first step: sums that are data of its graph as of every later one, not constants."""
        if self._totals is None:
            self._totals = xla.replicate_tensor(torch.zeros(1 + sum(map(bool, self.weights.values())), device=device))
            xla.sync()

    def read_terms(self) -> dict[str, float]:
        """Means since the last call of the weighted terms, in training. Reading waits for the device; counting does not."""
        *sums, steps = (0,) if self._totals is None else self._totals.tolist()
        if not steps:
            return {}
        self._totals = torch.zeros_like(self._totals)
        names = [name for name, weight in self.weights.items() if weight]
        return {name: total / steps for name, total in zip(names, sums, strict=True)}


# ---- gradient caching on XLA, where CachedLossMixin cannot keep the states of the generators


def embed_on_xla(model, column: dict, chunk: int) -> torch.Tensor:
    """Embeddings [N, K] of a column, in equal parts of at most `chunk` texts that are embedded again in the backward pass.

    Text n is in part n mod P, so that chips which share the batch share every part; each part is a graph, the same for all.
    """
    N = len(column["input_ids"])
    P = next(P for P in range(1, N + 1) if N % P == 0 and P * chunk >= N)
    names, parts = list(column), []
    for number in range(P):
        part = [
            value.unflatten(0, (-1, P))[:, number] if torch.is_tensor(value) else value for value in column.values()
        ]
        for value in part:
            if torch.is_tensor(value):
                xla.shard_batch(value)
        xla.sync()

        def embedded(*values):
            return model(dict(zip(names, values, strict=False)))["sentence_embedding"]

        if torch.is_grad_enabled():
            # torch_xla's function gives no gradient to weights unless an input asks for one.
            anchor = torch.zeros((), device=part[0].device, requires_grad=True)
            found_NK = xla.checkpoint_function()(embedded, *part, anchor)
            found_NK.register_hook(lambda gradient: xla.sync())
        else:
            found_NK = embedded(*part)
        parts.append(found_NK)
    return torch.stack(parts, 1).flatten(0, 1)
