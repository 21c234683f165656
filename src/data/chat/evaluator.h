// SPDX-License-Identifier: Apache-2.0
// Runs the syntax tree of a template, with jinja2's scopes: a loop's iteration, a macro and a block
// have scopes of their own, an if has none.
#pragma once

#include <ctime>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "data/chat/ast.h"
#include "data/chat/chat_span.h"

namespace hocket::data::jinja {

struct Rendered {
  std::string text;
  std::vector<ChatSpan> generation;  ///< outputs of {% generation %} blocks, in order of their ends
  /// Line of a generation block whose output went through a macro or a captured block, so that its
  /// place is unknown; 0: none.
  int lost_generation_line = 0;
};

/// A fault, with the line of the template at which it happened.
struct LocatedFault {
  int line = 0;
  Fault fault;
};

struct EvaluatorOptions {
  Limits limits;
  std::function<std::tm()> local_time;  ///< read by strftime_now
};

/// Runs the program on these variables. Throws LocatedFault.
Rendered evaluate(const Program& program,
                  const std::vector<std::pair<std::string, Value>>& variables,
                  const EvaluatorOptions& options);

}  // namespace hocket::data::jinja
