// SPDX-License-Identifier: Apache-2.0
// Names of what the host feeds into a step: models and autodiff make these inputs, engine::Batch
// fills them.
#pragma once

namespace hocket::graph::inputs {

inline constexpr const char* kTokens = "tokens";         ///< i32[T], per micro-batch
inline constexpr const char* kTargets = "targets";       ///< i32[T], per micro-batch; < 0: none
inline constexpr const char* kPositions = "positions";   ///< i32[T], per micro-batch
inline constexpr const char* kLossScale = "loss_scale";  ///< f64[1], per step
inline constexpr const char* kHyper = "hyper";           ///< f64[3], per step: see engine::Hyper

}  // namespace hocket::graph::inputs
