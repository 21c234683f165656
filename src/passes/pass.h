// SPDX-License-Identifier: Apache-2.0
// Passes: rewrites of the graph (between autodiff and lowering) or of the program (after lowering),
// each with a declared effect on numerics. A run names its passes in order; any can be skipped.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "program/program.h"

namespace hocket::passes {

/// What passes may ask of the plan.
struct PassOptions {
  std::string recompute = "none";         ///< none, selective, full
  int64_t bucket_bytes = 25 << 20;        ///< gradient bucket
};

struct Pass {
  const char* name;
  const char* help;
  bool same_numerics;  ///< results are bit-identical with and without it
  /// Exactly one is set.
  void (*on_graph)(graph::Graph&, const PassOptions&) = nullptr;
  void (*on_program)(program::Program&, const PassOptions&) = nullptr;
};

const std::vector<Pass>& all();
/// Throws Error naming all passes.
const Pass& find(std::string_view name);

struct PassTime {
  std::string name;
  double seconds = 0;
};

/// Runs passes of one level by name, in order. `after` is called after each (dump, check).
class PassRunner {
 public:
  PassRunner(std::vector<std::string> names, std::vector<std::string> skip, PassOptions options);
  std::function<void(const Pass&)> after;
  void run(graph::Graph& graph);
  void run(program::Program& program);
  const std::vector<PassTime>& times() const { return times_; }

 private:
  template <typename T, typename F>
  void run_level(T& object, F member);
  std::vector<const Pass*> passes_;
  PassOptions options_;
  std::vector<PassTime> times_;
};

}  // namespace hocket::passes
