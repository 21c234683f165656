// SPDX-License-Identifier: Apache-2.0
#include "check/rules/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "check/values/interpreter.h"

namespace hocket::check {
namespace {

/// Returns whether two costs are equal up to the rounding of other machines.
bool close(double said, double computed) {
  constexpr double kRounding = 1e-9;
  return std::abs(said - computed) <= kRounding * std::max(std::abs(said), std::abs(computed));
}

/// Returns whether the types of a kind are those of its op; types-follow refuses other kinds.
bool well_typed(const program::Kind& kind, const ops::Op& op) {
  try {
    return ops::makes(op, kind.attrs, kind.in, kind.out);
  } catch (const Error&) {
    return false;
  }
}

/// Returns whether only some of the rows in the types of a kind arrive in a step.
bool has_rows(const program::Kind& kind) {
  return ops::reads_counts(kind.in) && std::any_of(kind.in.begin(), kind.in.end(),
                                                   [](const auto& type) { return type.routed(); });
}

}  // namespace

std::string cost_differs(const program::Kind& kind, const ops::Op& op, int64_t experts,
                         std::span<const graph::Symbol> symbols) {
  if (!well_typed(kind, op)) return "";
  const ops::Cost want = ops::cost_of(op, {kind.attrs, kind.in, kind.out, experts, symbols});
  if (close(kind.flops, want.flops) &&
      close(static_cast<double>(kind.bytes), static_cast<double>(want.bytes))) {
    return "";
  }
  return fmt::format("its kind says {} FLOPs and {} bytes; {} on these types takes {} and {}",
                     kind.flops, kind.bytes, kind.op, want.flops, want.bytes);
}

void check_costs(Context& ctx, const Interpreter* interpreter) {
  std::vector<bool> seen(ctx.kinds.size(), false);
  for (size_t cls = 0; cls < ctx.program.classes.size(); ++cls) {
    const auto& tasks = ctx.program.classes[cls].tasks;
    for (size_t i = 0; i < tasks.size(); ++i) {
      const size_t k = static_cast<size_t>(tasks[i].kind);
      const program::Kind& kind = ctx.program.kinds[k];
      if (seen[k] || !ctx.kinds[k].rules) continue;
      seen[k] = true;
      int64_t experts = 0;  // expected rows are proportional to the rank's share of all experts
      if (has_rows(kind)) {
        experts = interpreter ? interpreter->experts(tasks[i].kind) : 0;
        if (experts == 0) continue;  // no reference, or a refused task
      }
      const std::string wrong =
          cost_differs(kind, *ctx.kinds[k].rules, experts, ctx.program.symbols);
      if (wrong.empty()) continue;
      const TaskRef ref{cls, i};
      ctx.report("cost-follows", ProblemClass::structure, ref, {}, ctx.name(ref) + ": " + wrong,
                 "leave flops and bytes out: `hocket graph --finish FILE` finds them");
    }
  }
}

}  // namespace hocket::check
