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
#include "comm/connection.h"
#include "engine/session.h"
#include "tests/compare_util.h"

namespace hocket::test {

/// Experts that tokens chose in a step: of a router, named by its tensor, in a micro-batch of all
/// ranks.
using Routes = std::map<std::pair<std::string, int32_t>, std::vector<int32_t>>;

struct Case {
  std::string text;  ///< run.yaml
  std::string name;
  uint64_t seed = 0;
  /// Not 0: the run begins with parameters that differ in their last bits, at random by this.
  uint64_t last_bits = 0;
  /// Routers choose, and their choices are kept (Outcome::routes).
  bool keep_routes = false;
  /// Choices for the routers, from another run's Outcome::routes; null lets them choose.
  std::shared_ptr<const std::vector<Routes>> routes = nullptr;
  /// Null: ranks are threads. Otherwise the plan's are processes, and this is the one of them that
  /// `connection` says; all of them call train().
  std::shared_ptr<comm::Connection> connection = nullptr;
};
/// A random model (dense or MoE, odd sizes) and plan of at most `max_ranks` ranks. `any_keys`: also
/// schedules that split and overlap passes, and keys by which sums are added up in another order.
Case random_case(uint64_t seed, int max_ranks, const std::string& dtype, bool any_keys = true);

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<double>> metrics;  ///< outputs of the last step's micro-batches
  std::map<std::string, std::vector<double>> params;   ///< after the steps
  std::map<std::string, std::vector<double>> grads;    ///< of the first step
  /// Routes of the step that made the gradients, if there was one, and of all others.
  std::shared_ptr<const std::vector<Routes>> routes;
  /// The same run with other last bits of its parameters (Case).
  std::function<Outcome(uint64_t last_bits)> again;
};

/// Random tokens with documents, targets with holes; per step, a function of the seed alone.
engine::Batch random_batch(const engine::Compiled& compiled, const engine::Run& run, int step,
                           uint64_t seed);

/// Options of train().
struct TrainOptions {
  bool on_one_rank = false;  ///< the same global micro-batches on one rank, without the plan
  int steps = 1;
  bool poison = false;                      ///< step buffers and outputs start as NaN
  std::vector<std::string> overrides = {};  ///< KEY=VALUE
  bool with_grads = true;                   ///< also the gradients of the first step
  /// Changes the training program before it runs; it is then not checked.
  std::function<void(program::Program&)> rewrite = nullptr;
  std::shared_ptr<runtime::Device> device = runtime::cpu_device();
};
/// Trains on random tokens (a function of the seed alone) under the plan. Throws Error if the check
/// refuses an unchanged program.
Outcome train(const Case& c, const TrainOptions& options = {});

struct Logits {
  std::vector<double> values;  ///< one micro-batch after the other
  std::shared_ptr<const std::vector<Routes>> routes;
};
/// Returns the logits of the first step's tokens, with the initial parameters, under the plan.
/// Throws Error if the check refuses the program.
Logits logits(const Case& c);
/// Returns those of the same micro-batches on one rank, without the plan.
Logits logits_on_one_rank(const Case& c);

/// Returns "", or the first difference between a run and the single-rank run that the order of sums
/// cannot explain. `tolerance` is relative, for fp64. Addends of a tensor may cancel: the gradient
/// of keys where every query sees one key is the rounding error of 0. Then 100 times its change
/// under other last bits of the parameters on one rank is also accepted: the measured rounding of
/// its addends.
std::string difference(const Outcome& many, const Outcome& one, double tolerance = 1e-10);

/// Outcomes of random faults in a case's program.
struct MutantCounts {
  uint64_t refused = 0;
  uint64_t far = 0;       ///< refused, but neither at the fault nor at a task near it
  uint64_t equal = 0;     ///< accepted, and run: as one rank
  std::string far_first;  ///< the first far refusal, for messages
};
/// Puts faults into the program one at a time, every second one of `kind` if there is one. Fails
/// the test if one is accepted and gives another result than one rank.
MutantCounts try_mutants(const Case& c, uint64_t mutants, uint64_t seed, const char* kind = "");

}  // namespace hocket::test
