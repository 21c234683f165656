// SPDX-License-Identifier: Apache-2.0
// The op registry (an explicit list, ops.inc) and the layout rules read from index notation.
#include "ops/op.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "base/id.h"
#include "ops/rules.h"

namespace hocket::ops {

#define HOCKET_OP_FILE(file) void register_##file(std::vector<Op>& ops);
#include "ops/ops.inc"
#undef HOCKET_OP_FILE

namespace {

struct Registry {
  std::vector<Op> ops;
  std::vector<const Op*> pointers;
  std::map<std::string, const Op*, std::less<>> by_name;
  std::array<const Op*, place_of(Meaning::empty) + 1> by_meaning = {};
  Registry() {
#define HOCKET_OP_FILE(file) register_##file(ops);
#include "ops/ops.inc"
#undef HOCKET_OP_FILE
    for (const Op& op : ops) {
      pointers.push_back(&op);
      HOCKET_CHECK(by_name.emplace(op.name, &op).second, "op {} is listed twice", op.name);
      if (op.meaning == Meaning::application) continue;
      const Op*& known = by_meaning[place_of(op.meaning)];
      HOCKET_CHECK(known == nullptr, "ops {} and {} mean the same", known->name, op.name);
      known = &op;
    }
  }
};

const Registry& registry() {
  static const Registry built;
  return built;
}

/// One alternative of a notation, split into operands; `partial_of` holds the letters after '/'.
struct Operands {
  std::vector<std::string> in, out, in_partial_of;
};

/// "td,vd/t->t.": letters of the dims of every operand, in and out; a '.' alone is a scalar.
Operands parse_notation(std::string_view text) {
  Operands operands;
  size_t arrow = text.find("->");
  const auto split = [](std::string_view list, std::vector<std::string>& to) {
    if (list.empty()) return;
    for (size_t begin = 0; begin <= list.size();) {
      size_t comma = std::min(list.find(',', begin), list.size());
      to.emplace_back(list.substr(begin, comma - begin));
      begin = comma + 1;
    }
  };
  split(text.substr(0, arrow), operands.in);
  split(text.substr(arrow + 2), operands.out);
  for (std::string& in : operands.in) {
    size_t slash = in.find('/');
    operands.in_partial_of.push_back(slash == in.npos ? "" : in.substr(slash + 1));
    if (slash != in.npos) {
      in.resize(slash);
    }
  }
  for (auto* list : {&operands.in, &operands.out}) {
    for (std::string& text : *list) {
      if (text == ".") {
        text = "";
      }
    }
  }
  return operands;
}

bool matches(const Operands& rule, std::span<const TensorType> in,
             std::span<const TensorType> out) {
  if (in.size() != rule.in.size() || out.size() != rule.out.size()) return false;
  const auto rank_ok = [](const std::string& letters, const TensorType& type) {
    return letters.empty() ? type.numel() == 1 : letters.size() == type.dims.size();
  };
  for (size_t i = 0; i < in.size(); ++i) {
    if (!rank_ok(rule.in[i], in[i])) return false;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (!rank_ok(rule.out[i], out[i])) return false;
  }
  return true;
}

std::vector<AxisSignature> enumerate(const Op& op, const Operands& rule) {
  // Everything that may lie on one mesh axis: all operands whole; for every letter that may be
  // split, the operands that have it split there, and outputs that lack it partial sums over it;
  // and, where the op is linear in an input (or in all of them together), that input partial and
  // with it all outputs.
  const size_t num_in = rule.in.size();
  const size_t num_out = rule.out.size();
  std::vector<AxisSignature> list;
  list.push_back({std::vector<Placement>(num_in), std::vector<Placement>(num_out), 0});
  for (char letter : std::string_view(op.layout.split)) {
    AxisSignature signature = list[0];
    signature.letter = letter;
    for (size_t i = 0; i < num_in; ++i) {
      if (size_t dim = rule.in[i].find(letter); dim != std::string::npos) {
        signature.in[i] = Placement::split(static_cast<int>(dim));
      } else if (rule.in_partial_of[i].find(letter) != std::string::npos) {
        signature.in[i] = Placement::partial();
      }
    }
    // A letter that no input has (or that this alternative lacks) gives no signature.
    if (signature.in == list[0].in) continue;
    for (size_t i = 0; i < num_out; ++i) {
      size_t dim = rule.out[i].find(letter);
      signature.out[i] =
          dim == std::string::npos ? Placement::partial() : Placement::split(static_cast<int>(dim));
    }
    list.push_back(std::move(signature));
  }
  std::string_view linear = op.layout.linear;
  for (size_t i = 0; i < num_in && i < linear.size(); ++i) {
    if (linear[i] != '1') continue;
    AxisSignature signature = list[0];
    signature.in[i] = Placement::partial();
    std::fill(signature.out.begin(), signature.out.end(), Placement::partial());
    list.push_back(std::move(signature));
  }
  if (op.layout.linear_jointly) {
    AxisSignature signature;
    signature.in.assign(num_in, Placement::partial());
    signature.out.assign(num_out, Placement::partial());
    list.push_back(std::move(signature));
  }
  return list;
}

}  // namespace

const std::vector<const Op*>& all() { return registry().pointers; }

const Op* find_or_null(std::string_view name) {
  auto it = registry().by_name.find(name);
  return it == registry().by_name.end() ? nullptr : it->second;
}

const Op& find(std::string_view name) {
  if (const Op* op = find_or_null(name)) return *op;
  std::string known;
  for (const Op* op : all()) {
    known += (known.empty() ? "" : ", ") + op->name;
  }
  fail("ops", "unknown op '{}'; expected one of {}", name, known);
}

const Op& of(Meaning meaning) {
  const Op* const op = registry().by_meaning[place_of(meaning)];
  HOCKET_CHECK(op != nullptr, "no op stands for meaning {}", place_of(meaning));
  return *op;
}

namespace {

/// The alternative of the op's notation for these operands.
Operands alternative(const Op& op, std::span<const TensorType> in,
                     std::span<const TensorType> out) {
  std::string_view rest = op.layout.notation;
  while (!rest.empty()) {
    size_t bar = std::min(rest.find('|'), rest.size());
    Operands rule = parse_notation(rest.substr(0, bar));
    if (matches(rule, in, out)) return rule;
    rest.remove_prefix(std::min(bar + 1, rest.size()));
  }
  fail("layout", "op {} has no layout rule for these ranks (rule {})", op.name, op.layout.notation);
}

bool takes_any(const Op& op) { return std::string_view(op.layout.notation) == "*"; }

}  // namespace

Letters letters(const Op& op, std::span<const TensorType> in, std::span<const TensorType> out) {
  Letters letters;
  letters.any = takes_any(op);
  if (letters.any) {
    letters.in.resize(in.size());
    letters.in_partial_of.resize(in.size());
    letters.out.resize(out.size());
  } else {
    Operands rule = alternative(op, in, out);
    letters.in = std::move(rule.in);
    letters.in_partial_of = std::move(rule.in_partial_of);
    letters.out = std::move(rule.out);
  }
  for (const TensorType& type : out) {
    letters.dims_out.push_back(type.dims.size());
  }
  return letters;
}

std::vector<AxisSignature> signatures(const Op& op, std::span<const TensorType> in,
                                      std::span<const TensorType> out) {
  if (takes_any(op)) {
    return {{std::vector<Placement>(in.size()), std::vector<Placement>(out.size()), 0}};
  }
  return enumerate(op, alternative(op, in, out));
}

namespace {

/// The signature whose inputs lie as `in` says, or letter 0 and no placements.
AxisSignature signature_for(const Op& op, std::span<const TensorType> in_types,
                            std::span<const TensorType> out_types, std::span<const Placement> in,
                            bool* found) {
  for (AxisSignature& signature : signatures(op, in_types, out_types)) {
    *found = std::equal(in.begin(), in.end(), signature.in.begin(), signature.in.end());
    if (*found) return std::move(signature);
  }
  *found = false;
  return {};
}

}  // namespace

bool propagate(const Op& op, std::span<const TensorType> in_types,
               std::span<const TensorType> out_types, std::span<const Placement> in,
               std::span<Placement> out) {
  bool found = false;
  const AxisSignature signature = signature_for(op, in_types, out_types, in, &found);
  if (found) {
    std::copy(signature.out.begin(), signature.out.end(), out.begin());
  }
  return found;
}

std::string cut_run(const Op& op, const Attrs& attrs, std::span<const TensorType> in_types,
                    std::span<const TensorType> out_types, std::span<const Placement> in) {
  const LayoutRule::Runs& runs = op.layout.runs;
  if (runs.letter == 0) return "";
  bool found = false;
  const AxisSignature signature = signature_for(op, in_types, out_types, in, &found);
  if (!found || signature.letter != runs.letter) return "";
  for (size_t i = 0; i < signature.in.size(); ++i) {
    if (!signature.in[i].is_split()) continue;
    const int64_t part = in_types[i].dims[signature.in[i].dim()];
    const int64_t run = attrs.i_or(runs.length, 0);
    if (run <= 0) return fmt::format("its {} elements are a part of one run", part);
    if (part % run != 0) {
      return fmt::format("its {} are no multiple of {}={}", part, runs.length, run);
    }
  }
  return "";
}

const char* to_string(Family family) {
  constexpr const char* kNames[] = {"element-wise", "products",  "expert products",
                                    "attention",    "loss",      "embedding",
                                    "routing",      "optimizer", "moving"};
  return kNames[place_of(family)];
}

bool reads_counts(std::span<const TensorType> in) {
  return std::any_of(in.begin(), in.end(),
                     [](const TensorType& type) { return type.dtype == DType::i64; });
}

Cost cost_of(const Op& op, Call call) {
  if (!reads_counts(call.in)) {
    call.experts = 0;
  }
  const int64_t workspace = op.workspace ? round_up(op.workspace(call), 64) : 0;
  Work work;
  if (graph::any_symbolic(call.in) || graph::any_symbolic(call.out)) {
    const std::vector<TensorType> in = graph::expected_types(call.in, call.symbols);
    const std::vector<TensorType> out = graph::expected_types(call.out, call.symbols);
    work = op.work({call.attrs, in, out, call.experts});
  } else {
    work = op.work(call);
  }
  return {work.flops, work.bytes, workspace};
}

int64_t workspace_bytes(std::string_view op, const Attrs& attrs, std::span<const TensorType> in,
                        std::span<const TensorType> out) {
  return cost_of(find(op), {attrs, in, out}).workspace;
}

}  // namespace hocket::ops
