"""SIGReg: how far embeddings are from an isotropic Gaussian, by the Epps-Pulley test on random one-dimensional slices.

Balestriero and LeCun, LeJEPA (arXiv 2511.08544); Epps and Pulley, Biometrika 70 (1983). For each slice u = <z, a>:

    C_k = mean_n cos(t_k u_n),   S_k = mean_n sin(t_k u_n),   phi_k = exp(-t_k^2 / 2)
    T   = N sum_k w_k [(C_k - phi_k)^2 + S_k^2],   w_k = 2 dt phi_k, half of it at both ends

with equispaced knots t_k from 0 to t_max, and SIGReg is the mean of T over slices and views. Plain autograd keeps
several tensors [N, M, knots]; with the gradient in closed form only u (on a CPU cos and sin of dt u) and the means are kept.
The knot at 0 is left out everywhere: C_0 = phi_0 = 1 and S_0 = 0 whatever the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, normalize

# V views · N texts · K embedding · M slices · P knots above 0

CPU_CHUNK = 2**16  # projections whose powers fit in a core's L2 cache together


class SIGReg(torch.nn.Module):
    """Mean Epps-Pulley statistic over `num_slices` random unit directions, drawn anew from (seed, step).

    An exact Gaussian gives `gaussian_floor(t_max, n_points)`, 1.0525 for (3, 17) and any N: never compare with 0. Full
    collapse gives 0.402 N for (3, 17). Values of other t_max or n_points are on another scale.

    t_max: last knot. The paper's text has 5, its code 3.
    n_points: knots from 0 to t_max, both included; odd.
    num_slices: M; 256 give the value to 3 %, 1,024 to 1.5 %.
    seed: of the slices. Every process must have the same.
    """

    def __init__(self, *, t_max: float, n_points: int, num_slices: int, seed: int = 0) -> None:
        super().__init__()
        knots = _knots(t_max, n_points)
        self.t_max, self.n_points, self.num_slices, self.seed = t_max, n_points, num_slices, seed
        for name, values_P in zip(("knots", "target", "weights"), knots, strict=True):
            values_P1 = torch.from_numpy(values_P[1:, None]).float()
            self.register_buffer(name, values_P1, persistent=False)

    @property
    def floor(self) -> float:
        """Expected value for an exact Gaussian."""
        return gaussian_floor(self.t_max, self.n_points)

    def slices(self, dimensions: int, step: int) -> torch.Tensor:
        """Unit rows [M, K] in fp32 on the CPU: a generator of the device would draw others on each kind of device."""
        seed = int(np.random.SeedSequence((self.seed, step)).generate_state(1)[0])
        slices_MK = torch.randn(self.num_slices, dimensions, generator=torch.Generator().manual_seed(seed))
        return normalize(slices_MK, dim=1)

    def forward(self, embeddings: torch.Tensor, step: int) -> torch.Tensor:
        """SIGReg of embeddings [V, N, K], or [N, K] of one view, as an fp32 scalar.

        The projection is computed in the embeddings' dtype, or autocast's; all that follows in fp32 (cos and sin averaged
        in bf16 are 18 % off at N = 65,536). fp64 embeddings stay fp64.

        Over several devices value and gradient are those of the batch they share. Under torch.distributed every process
        must call this, with the same shape but for N, and weigh the result alike: sums are all-reduced, and the local
        gradient is multiplied by the number of processes, which DDP's averaging takes out again. Under SPMD the tensor
        is the global one, and its mean needs nothing.

        Raises ValueError for shapes that do not fit; or, on a CPU, embeddings that are not finite. On other devices looking
        would wait for the device at every step: the value is NaN there, for the trainer's guard to find.
        """
        if embeddings.dim() not in (2, 3) or embeddings.shape[-2] < 1:
            raise ValueError(f"embeddings has shape {list(embeddings.shape)}: must be [V, N, K] or [N, K] with N > 0")
        embeddings_VNK = embeddings if embeddings.dim() == 3 else embeddings[None]
        V, N, K = embeddings_VNK.shape
        slices_MK = self.slices(K, step)
        if embeddings.is_cuda:  # a copy out of memory that is not pinned waits until the GPU has done all before it
            slices_MK = slices_MK.pin_memory().to(embeddings.device, non_blocking=True)
        slices_MK = slices_MK.to(embeddings.device, embeddings.dtype)
        projection_VNM = linear(embeddings_VNK, slices_MK)
        with torch.autocast(embeddings.device.type, enabled=False):
            value = _EppsPulley.apply(projection_VNM, self)
        if value.device.type == "cpu" and not math.isfinite(value.detach()):
            rows = int((~torch.isfinite(embeddings_VNK).all(-1)).sum())
            raise ValueError(
                f"embeddings: {rows} of {V * N} rows here hold NaN or infinity; lower the learning rate or compute in fp32"
            )
        return value

    def circles(self, projection_VNM: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """cos and sin of a = dt u, in fp32 or fp64, on a CPU in pieces along N that stay in its cache."""
        V, N, M = projection_VNM.shape
        # Accelerators fuse, or are held up by launches.
        rows = max(1, CPU_CHUNK // (V * M)) if projection_VNM.device.type == "cpu" else N
        wide = torch.promote_types(projection_VNM.dtype, torch.float32)
        for part in projection_VNM.split(rows, dim=1):
            angle = part.to(wide) * (self.t_max / (self.n_points - 1))
            yield angle.cos(), angle.sin()


class _EppsPulley(torch.autograd.Function):
    """SIGReg of projections [V, N, M]:  dT/du_n = 2 sum_k w_k t_k [S_k cos(t_k u_n) - (C_k - phi_k) sin(t_k u_n)]."""

    @staticmethod
    def forward(ctx, projection_VNM, sigreg: SIGReg):
        # A CPU keeps cos and sin instead of u: computing them again takes longer than reading them.
        circles = list(sigreg.circles(projection_VNM)) if projection_VNM.device.type == "cpu" else []
        sums_VP2M = sum(
            _sums_at_knots(*circle, len(sigreg.knots)) for circle in circles or sigreg.circles(projection_VNM)
        )
        rows = projection_VNM.shape[1]
        ctx.processes = 1
        if spread_over_processes(projection_VNM):
            ctx.processes = dist.get_world_size()
            message = torch.cat((sums_VP2M.flatten(), sums_VP2M.new_tensor([rows])))  # one, with the rows of all
            dist.all_reduce(message)
            sums_VP2M, rows = message[:-1].view_as(sums_VP2M), message[-1]
        cos_VPM, sin_VPM = (sums_VP2M / rows).unbind(2)
        excess_VPM = cos_VPM - sigreg.target
        ctx.sigreg, ctx.dtype = sigreg, projection_VNM.dtype
        ctx.save_for_backward(excess_VPM, sin_VPM, *(sum(circles, ()) if circles else (projection_VNM,)))
        return (rows * sigreg.weights * (excess_VPM.square() + sin_VPM.square())).sum(1).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        excess_VPM, sin_VPM, *kept = ctx.saved_tensors
        sigreg = ctx.sigreg
        V, _, M = sin_VPM.shape
        factor_P1 = gradient * (2 * ctx.processes / (V * M)) * sigreg.weights * sigreg.knots
        slope_VPM, drop_VPM = factor_P1 * sin_VPM, factor_P1 * -excess_VPM
        circles = sigreg.circles(*kept) if len(kept) == 1 else zip(kept[::2], kept[1::2], strict=True)
        parts = [_series(*circle, slope_VPM, drop_VPM).to(ctx.dtype) for circle in circles]
        return torch.cat(parts, dim=1), None


def _sums_at_knots(cos_1, sin_1, knots: int):
    """Sums over N of cos(k a) and sin(k a), k = 1 ... P, [V, P, 2, M].

    Chebyshev's recurrence in steps of two, cos((k + 2) a) = 2 cos(2 a) cos(k a) - cos((k - 2) a), sin alike, among odd and
    among even knots: steps of one have four times the error. Written for these times +, +, -, -, +, ... the last term's sign
    is a plus, so that a knot takes one fused product in place where a rotation takes four.
    """
    twice = sin_1.square().mul_(-4).add_(2)  # 2 cos(2 a)
    # (cos, sin) at k - 2 and at k, by the parity of k: from -1 and 1, from 0 and 2.
    now = {1: torch.stack((cos_1, sin_1)), 0: torch.stack((twice / 2, 2 * sin_1 * cos_1))}
    before = {1: torch.stack((cos_1, -sin_1)), 0: torch.stack((torch.ones_like(cos_1), torch.zeros_like(sin_1)))}
    sums = []
    for knot in range(1, knots + 1):
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


def spread_over_processes(tensor) -> bool:
    """Whether other processes hold further rows of the batch."""
    # An XLA tensor is the global one already, also where torch.distributed runs beside it.
    return tensor.device.type != "xla" and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


# ---- constants of the statistic


def gaussian_floor(t_max: float, n_points: int) -> float:
    """Expected statistic of samples of any size from N(0, I): sum_k w_k (1 - phi_k^2), as E|psi_N - psi|^2 = (1 - |psi|^2) / N."""
    _, phi_P, weight_P = _knots(t_max, n_points)
    return float((weight_P * (1 - phi_P**2)).sum())


def _knots(t_max: float, n_points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Knots, the Gaussian's characteristic function there, and weights, [n_points] each in fp64."""
    t_P = np.linspace(0, t_max, n_points)
    phi_P = np.exp(-(t_P**2) / 2)
    weight_P = 2 * t_P[1] * phi_P
    weight_P[[0, -1]] /= 2
    return t_P, phi_P, weight_P
