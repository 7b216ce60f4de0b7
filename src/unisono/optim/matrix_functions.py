"""Functions of batches of small symmetric matrices by matrix products alone.

An eigensolver on a GPU reports to the host whether it converged, so the host waits, and a step
that has one in it cannot be captured in a CUDA graph. What natural gradient needs of its rank x
rank matrices are a root, a positive part and an inverse. All of them follow from the inverse root,
which a fixed number of products computes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def inverse_root(a: Tensor, bound: Tensor, least: float) -> Tensor:
    """Returns a^-1/2 of positive semidefinite matrices.

    With x = 1/sqrt(bound) and t = a / bound at first, both are multiplied by polynomials in t,

        p = 1.5 w - 0.5 w^3 t,      x <- x p,      t <- t p^2,

    so that t = x a x throughout. A root sigma of an eigenvalue of t, in [l, 1], goes to
    1.5 w sigma - 0.5 (w sigma)^3: with w = sqrt(3 / (1 + l + l^2)) the ends l and 1 go to the same
    place l', the largest value between them is 1, and the interval shrinks to [l', 1] as fast as a
    cubic can make it. When l is 1, t is I, and x is a^-1/2. The number of steps depends on `least`
    alone.

    Eigenvalues below least^2 bound end with an x that is too small: what is made of them is damped,
    never blown up.

    Args:
        a: n x r x r.
        bound: n: at least the largest eigenvalue of each, and above 0.
        least: The root of the smallest eigenvalue, as a share of the root of `bound`.
    """
    scale = bound.view(-1, 1, 1)
    t = a / scale
    x = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device) / scale.sqrt()
    low = least
    while low < 1.0 - 1e-9:
        w = math.sqrt(3.0 / (1.0 + low + low * low))
        first, third = 1.5 * w, -0.5 * w**3
        x = torch.baddbmm(x, x, t, beta=first, alpha=third)
        half = torch.baddbmm(t, t, t, beta=first, alpha=third)
        t = torch.baddbmm(half, half, t, beta=first, alpha=third)
        low = first * low + third * low**3
    return x


def largest_eigenvalue(a: Tensor) -> Tensor:
    """Returns the largest eigenvalue of positive semidefinite matrices, n: to half a percent.

    tr(a^65) / tr(a^64): exact where one eigenvalue, however often it occurs, stands out; where
    others are close by, somewhat less than the largest.
    """
    power = a / trace(a).view(-1, 1, 1)
    for _ in range(6):
        power = torch.bmm(power, power)
        power = power / trace(power).view(-1, 1, 1)
    return (power * a).sum((-2, -1))


def positive_part(a: Tensor, bound: Tensor, least: float) -> Tensor:
    """Returns (a + |a|) / 2 of symmetric matrices: negative eigenvalues become 0.

    |a| = a^2 (a^2)^-1/2. An eigenvalue of less than `least` of `bound`, either way, may come out
    anywhere between a / 2 and where it should.

    Args:
        a: n x r x r.
        bound: n: at least the largest |eigenvalue|.
        least: The precision, as a share of `bound`.
    """
    square = torch.bmm(a, a)
    size = torch.bmm(square, inverse_root(square, bound.square(), least))
    return (a + size) / 2


def inverse(a: Tensor, bound: Tensor, least: float) -> Tensor:
    """Returns a^-1 of positive definite matrices; the arguments are those of `inverse_root`."""
    root = inverse_root(a, bound, least)
    return torch.bmm(root, root)


def trace(a: Tensor) -> Tensor:
    """Returns the trace of each matrix, n."""
    return a.diagonal(dim1=-2, dim2=-1).sum(-1)
