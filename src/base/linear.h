// SPDX-License-Identifier: Apache-2.0
// Small systems of linear equations: those of least squares.
#pragma once

#include <vector>

namespace hocket {

/// x of A x = b, of a symmetric A with a positive diagonal, as the normal equations of least
/// squares have; `rows`: the rows of A, each with its element of b behind it. Empty if there are no
/// equations, or if they depend on each other.
std::vector<double> solve_normal(std::vector<std::vector<double>> rows);

}  // namespace hocket
