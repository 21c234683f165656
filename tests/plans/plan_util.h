// SPDX-License-Identifier: Apache-2.0
// Random models, plans and batches, and the comparison of a plan with the single-rank run of the
// same global micro-batches.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/session.h"
#include "tests/compare_util.h"

namespace hocket::test {

struct Case {
  std::string text;  ///< run.yaml
  std::string name;
  uint64_t seed = 0;
};
/// A random model (dense or MoE, odd sizes) and plan of at most `max_ranks` ranks.
Case random_case(uint64_t seed, int max_ranks, const std::string& dtype);

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> params;  ///< after the steps
  std::map<std::string, std::vector<double>> grads;   ///< of the first step
};

/// Random tokens with documents, targets with holes; per step, a function of the seed alone.
engine::Batch random_batch(const engine::Compiled& compiled, const engine::Run& run, int step,
                           uint64_t seed);

/// Trains `steps` steps on random tokens (a function of the seed alone) under the plan.
/// `single`: the same global micro-batches on one rank. `rewrite` changes the training program
/// before it runs; `device` runs it.
Outcome train(const Case& c, bool single, int steps, bool poison = false,
              const std::vector<std::string>& overrides = {}, bool with_grads = true,
              const std::function<void(program::Program&)>& rewrite = nullptr,
              const std::shared_ptr<runtime::Device>& device = runtime::cpu_device());

}  // namespace hocket::test
