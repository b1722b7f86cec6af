"""What lies between the matrix products of `pair_logits`, each in one pass over memory. float32, no lock held.

`rows_q` and `rows_d` are the token sides [x, a]: the first part is multiplied, the second one added.
"""

from __future__ import annotations

import numpy as np
from numba import njit

# sums may be vectorised; NaN and infinity stay what they are
_kernel = njit(cache=True, nogil=True, fastmath={"contract", "nsz", "reassoc"})
_ZERO = np.float32(0)


@_kernel
def products(rows_q, rows_d, q, d, out):  # type: ignore[no-untyped-def]
    """out = x_q o x_d"""
    for i in range(len(q)):
        x_q, x_d, row = rows_q[q[i]], rows_d[d[i]], out[i]
        for j in range(len(row)):
            row[j] = x_q[j] * x_d[j]


@_kernel
def add_relu(hidden, rows_q, rows_d, q, d, width):  # type: ignore[no-untyped-def]
    """hidden = relu(hidden + a_q + a_d)"""
    for i in range(len(q)):
        a_q, a_d, row = rows_q[q[i], width:], rows_d[d[i], width:], hidden[i]
        for j in range(len(row)):
            value = row[j] + a_q[j] + a_d[j]
            row[j] = _ZERO if value < _ZERO else value


@_kernel
def relu_dot(hidden, bias, weight, last, out):  # type: ignore[no-untyped-def]
    """hidden = relu(hidden + bias); out = hidden . weight + last"""
    for i in range(len(out)):
        row, total = hidden[i], _ZERO
        for j in range(len(row)):
            value = row[j] + bias[j]
            value = _ZERO if value < _ZERO else value
            row[j] = value
            total += value * weight[j]
        out[i] = total + last


@_kernel
def back_relu_dot(hidden, grad, weight, out, to_bias, to_weight):  # type: ignore[no-untyped-def]
    """The gradients of `relu_dot`: out is that of its input, the sums are added to."""
    for i in range(len(grad)):
        row, to_row, g = hidden[i], out[i], grad[i]
        for j in range(len(row)):
            value = g * weight[j] if row[j] > _ZERO else _ZERO
            to_row[j] = value
            to_bias[j] += value
            to_weight[j] += g * row[j]


@_kernel
def back_relu(hidden, grad):  # type: ignore[no-untyped-def]
    """grad = 0 where hidden is"""
    for i in range(len(grad)):
        row, to_row = hidden[i], grad[i]
        for j in range(len(row)):
            to_row[j] = to_row[j] if row[j] > _ZERO else _ZERO


@_kernel
def back_products(g_product, g_hidden, rows_q, rows_d, q, d, to_q, to_d):  # type: ignore[no-untyped-def]
    """Adds the gradients of `products` and of a_q, a_d to those of the token sides."""
    width = g_product.shape[1]
    for i in range(len(q)):
        x_q, x_d, sum_q, sum_d = rows_q[q[i]], rows_d[d[i]], to_q[q[i]], to_d[d[i]]
        product, hidden = g_product[i], g_hidden[i]
        for j in range(width):
            sum_q[j] += product[j] * x_d[j]
            sum_d[j] += product[j] * x_q[j]
        for j in range(len(hidden)):
            sum_q[width + j] += hidden[j]
            sum_d[width + j] += hidden[j]
