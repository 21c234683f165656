// SPDX-License-Identifier: Apache-2.0
// Programs for the tests of the check: small dense and MoE models under given or random plans.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "models/config.h"
#include "parallel/plan.h"
#include "program/program.h"

namespace hocket::check::test {

struct Case {
  std::string name;
  graph::Graph graph;
  parallel::Plan plan;
  program::Program program;  ///< lowered, with dependencies and memory plan
};

models::ModelConfig dense(int64_t layers, bool tied);
models::ModelConfig moe(int64_t layers);
/// Passes that rewrite a step, and the settings of their options.
struct Rewrites {
  std::vector<std::string> passes{"recompute", "ring_attention", "chunk", "tiles",
                                  "bucket",    "compress",       "expand"};
  std::vector<std::string> settings;
};
enum class Purpose { train, loss, grads, logits, generate };
/// Lowers a step of `config` under `plan`; train: gradients, AdamW, losses.
Case make_case(const models::ModelConfig& config, const parallel::Plan& plan, int64_t sequence = 8,
               int64_t bucket_bytes = 25 << 20, Purpose purpose = Purpose::train,
               const Rewrites& rewrites = {});
/// Splits a class in two: ranks with a coordinate below `at` on the axis, and, as the last class,
/// the other ranks. Their tasks stay the same.
void split_class(program::Program& program, int32_t cls, int32_t axis, int32_t at);
/// Splits some classes along random axes at random coordinates, and returns their number.
int split_classes(program::Program& program, std::mt19937_64& rng);
/// Adds a second role of the same mesh. Its ranks run the same step beside the first.
void twin_role(program::Program& program);
/// Returns a random small model under a random plan of at most 8 ranks, with every pass under its
/// defaults or one of its samples.
Case random_case(std::mt19937_64& rng);

}  // namespace hocket::check::test
