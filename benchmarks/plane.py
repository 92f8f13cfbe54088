"""A plane through three points of the space of parameters, and a grid on it (Figure 6).

As Mirzadeh et al., "Linear mode connectivity in multitask and continual learning", ICLR 2021
(MC-SGD), span it: the first solution is the origin, the first axis points towards the second, the
other is orthogonal to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Point = tuple[float, float]


class Plane(NamedTuple):
    """A plane in the space of P parameters.

    Attributes:
        origin: Where both coordinates are 0, shape (P,).
        u: First axis, of length 1, shape (P,).
        v: Second axis, of length 1 and orthogonal to the first, shape (P,).
    """

    origin: Tensor
    u: Tensor
    v: Tensor


def plane_axes(first: Tensor, second: Tensor, third: Tensor) -> Plane:
    """The plane through three points, by Gram and Schmidt.

    Args:
        first: The origin, shape (P,).
        second: Lies on the first axis, at a positive coordinate, shape (P,).
        third: Has a positive second coordinate, shape (P,).

    Returns:
        Origin and axes.

    Raises:
        ValueError: If the points lie on a line, or are not finite.

    Example:
        >>> points = torch.tensor([[0.0, 0.0, 1.0], [2.0, 0.0, 1.0], [1.0, 3.0, 1.0]])
        >>> plane = plane_axes(*points)
        >>> [round(coordinate, 4) for coordinate in coordinates(points[2], plane)]
        [1.0, 3.0]
    """
    edges = torch.stack([second - first, third - first], dim=1)
    axes, triangle = torch.linalg.qr(edges)  # Gram-Schmidt that keeps its precision
    spans = triangle.diagonal()
    if not (spans.abs() > 1e-6 * edges.norm(dim=0)).all():
        raise ValueError(
            "Expected the three points to span a plane, got points on a line or not finite: train "
            "longer, or with a learning rate that does not diverge."
        )
    u, v = (axes * spans.sign()).T
    return Plane(first, u, v)


def coordinates(point: Tensor, plane: Plane) -> Point:
    """Coordinates of a point (P,), or of its projection on the plane if it lies beside it."""
    offset = point - plane.origin
    return float(offset @ plane.u), float(offset @ plane.v)


def point_at(x: float, y: float, plane: Plane) -> Tensor:
    """The point (P,) of the plane with these coordinates."""
    return plane.origin + x * plane.u + y * plane.v


def grid_axes(
    points: Iterable[Point], *, resolution: int, margin: float
) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of a grid around points of the plane.

    Args:
        points: Coordinates (x, y) of each.
        resolution: Grid points along each axis.
        margin: Room on all sides, as a share of the longer extent.

    Returns:
        x and y, rising, shape (resolution,) each.

    Raises:
        ValueError: If ``resolution`` is below 2.

    Example:
        >>> x, y = grid_axes([(0.0, 0.0), (10.0, 5.0)], resolution=3, margin=0.2)
        >>> x.tolist(), y.tolist()
        ([-2.0, 5.0, 12.0], [-2.0, 2.5, 7.0])
    """
    if resolution < 2:
        raise ValueError(f"Expected `resolution` to be at least 2, got {resolution}.")
    corners = np.array(list(points))
    low, high = corners.min(axis=0), corners.max(axis=0)
    room = margin * (high - low).max()
    x, y = np.linspace(low - room, high + room, resolution).T
    return x, y
