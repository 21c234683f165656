// SPDX-License-Identifier: Apache-2.0
#include "cli/op_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "collectives/comm_op.h"
#include "ops/op.h"

namespace hocket::cli {
namespace {

using Types = std::span<const graph::TensorType>;

std::string quoted_types(Types types) {
  std::string text;
  for (const graph::TensorType& type : types) {
    text += (text.empty() ? "" : " ") + graph::to_string(type);
  }
  return '"' + text + '"';
}

/// The kind of a case, without its number.
std::string kind_line(const std::string& op, const graph::Attrs& attrs, Types in, Types out) {
  return fmt::format("  {} attrs=\"{}\" in={} out={}\n", op, graph::to_string(attrs, '\''),
                     quoted_types(in), quoted_types(out));
}

/// "0 -> 1, 2 -> 0".
std::string pairs_text(const std::vector<std::pair<int, int>>& pairs) {
  std::string text;
  for (const auto& [input, output] : pairs) {
    text += fmt::format("{}input {} as output {}", text.empty() ? "" : ", ", input, output);
  }
  return text;
}

std::string describe(const ops::Op& op) {
  std::string text = fmt::format("{}\n{}\n", op.name, op.doc);
  const auto line = [&](const char* what, const std::string& says) {
    if (!says.empty()) {
      text += fmt::format("{:<14}{}\n", what, says);
    }
  };
  line("notation", op.layout.notation);
  line("may be cut", op.layout.split);
  line("by position", op.layout.positional);
  line("in place", pairs_text(op.inplace));
  line("may overwrite", pairs_text(op.may_overwrite));
  std::string added;
  for (size_t output = 0; output < graph::OutputSet::kMaxOutputs; ++output) {
    if (op.accumulates.contains(output)) {
      added += (added.empty() ? "" : ", ") + fmt::format("{}", output);
    }
  }
  line("adds to", added.empty() ? "" : "outputs " + added + " (acc)");
  if (!op.samples) return text;
  text += "kinds\n";
  for (const ops::Sample& sample : op.samples()) {
    text +=
        kind_line(op.name, sample.attrs, sample.inputs(), op.infer(sample.attrs, sample.inputs()));
  }
  return text;
}

std::string describe(const comm::Op& op) {
  std::string text = fmt::format("{}\n{}\n", op.name, op.doc);
  if (!op.samples) return text;
  text += "kinds, in a group of 2\n";
  for (const comm::Sample& sample : op.samples(2)) {
    std::vector<graph::TensorType> out;
    if (op.role == comm::Role::collective) {
      out = comm::infer(op, sample.attrs, sample.in, 2);
    }
    text += kind_line(op.name, sample.attrs, sample.in, out);
  }
  return text;
}

}  // namespace

std::string list_ops(const std::string& name) {
  if (!name.empty()) {
    const comm::Id id = comm::find(name);
    return id != comm::Id::none ? describe(comm::op(id)) : describe(ops::find(name));
  }
  std::string text = fmt::format("{:<22}{}\n", "op", "notation: a letter per dim");
  for (const ops::Op* op : ops::all()) {
    text += fmt::format("{:<21} {}\n", op->name, op->layout.notation);
  }
  text += fmt::format("\n{:<22}{}\n", "communication", "what it does");
  for (const comm::Op* op : comm::all()) {
    text += fmt::format("{:<21} {}\n", op->name, op->doc);
  }
  return text;
}

}  // namespace hocket::cli
