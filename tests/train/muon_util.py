# SPDX-License-Identifier: Apache-2.0
"""torch.optim.Muon with its Newton-Schulz iteration in the type of the gradient, where PyTorch rounds to bf16."""
import contextlib
from unittest import mock

import torch.optim._muon


def orthogonalized(grad, ns_coefficients, ns_steps, eps):
    a, b, c = ns_coefficients
    x = grad / grad.norm().clamp(min=eps)
    for _ in range(ns_steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@contextlib.contextmanager
def exact_newton_schulz():
    with mock.patch.object(torch.optim._muon, "_zeropower_via_newtonschulz", orthogonalized):
        yield
