// SPDX-License-Identifier: Apache-2.0
// Advantages, corrections and weights of an update's tokens: functions of rewards,
// log-probabilities and values alone. All sums are over all samples of a step or update, so that
// nothing depends on data-parallel ranks or micro-batches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "run/rl_section.h"

namespace hocket::rl {

/// Inputs of the loss of one sample of n tokens.
struct LossInputs {
  int64_t group = 0;            ///< samples of one group are adjacent
  double reward = 0;            ///< shaped, of the whole sample; given at its last token
  bool scored = true;           ///< false: left out of its group's mean and deviation
  bool counts = true;           ///< false: left out of the loss (overlong filter), not of its group
  std::vector<double> old;      ///< [n]: log-probabilities that the ratio is anchored at
  std::vector<double> rollout;  ///< [n]: of the policy that sampled
  std::vector<double> reference;  ///< [n]: of the reference; empty: there is none
  std::vector<double> values;     ///< [n]: of the critic before each token; empty: there is none
  /// [n]: of each token's loss; 0 before set_weights: the token is left out of loss and advantages;
  /// empty: none is.
  std::vector<double> weights;
  std::vector<double> factors;  ///< [n]: that tis multiplies the loss by; empty: all 1

  // Results.
  std::vector<double> advantages;  ///< [n]
  std::vector<double> returns;     ///< [n]: targets of the critic; empty: there is none

  /// Returns whether a token's loss counts.
  bool trains(size_t t) const { return counts && (weights.empty() || weights[t] != 0); }
  /// Returns the advantage of a token in the loss of the policy.
  double loss_advantage(size_t t) const {
    return factors.empty() ? advantages[t] : factors[t] * advantages[t];
  }
};

/// Fills advantages (and returns) of a step's samples by RlSection::advantage, with the divergence
/// from the reference in the rewards if kl_in is reward. Formulas: docs/rl-losses.md, by verl's
/// core_algos.py. Deviations are unbiased (n - 1); a group of one has mean 0 and deviation 1. One
/// scored sample of several has advantage 0 in its group, as in TRL. Tokens that do not train are
/// passed over by whitening and by sums over later tokens. Throws Error if something that the
/// estimator needs is missing.
void set_advantages(const engine::RlSection& section, std::span<LossInputs> loss_inputs);

/// Returns a warning for the beginning of a run, if groups of one are compared with themselves;
/// else "".
std::string advantage_warning(const engine::RlSection& section);

/// Corrects a step for samples of another policy: sets the factors of the loss to truncated ratios
/// (tis), or leaves tokens out (mis): weights become 0 or 1. Call before set_advantages. The
/// figures are not numbers if no token counts.
struct CorrectionStats {
  double mean_ratio = 0, max_ratio = 0;  ///< of pi_old / mu, by token
  double left_out = 0;                   ///< share of tokens with weight 0 by mis
  double cut_off = 0;                    ///< share of tokens above the limit of tis
  double kl = 0;                         ///< k3 of mu from pi_old, mean over tokens
};
CorrectionStats apply_correction(const engine::RlSection& section,
                                 std::span<LossInputs> loss_inputs);

/// Fills the weights of an update, which is samples [begin, end) of its step, by
/// RlSection::aggregation: the loss of the update is the sum of weight times loss over all tokens.
/// Weights that are 0 stay 0; tokens_in_mean and samples_in_mean say what the means count. Returns
/// whether any token trains.
bool set_weights(const engine::RlSection& section, std::span<LossInputs> step, size_t begin,
                 size_t end);

/// The penalty of a sample's length (DAPO, eq. 13): 0 up to longest - buffer, then linear to
/// -penalty at `longest`.
double length_penalty(const engine::OverlongSection& overlong, int64_t length, int64_t longest);

/// pass@k of n samples with c right ones: 1 - C(n-c, k) / C(n, k) (Chen et al., arXiv 2107.03374,
/// eq. 1).
double pass_at(int64_t k, int64_t n, int64_t c);

}  // namespace hocket::rl
