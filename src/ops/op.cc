// SPDX-License-Identifier: Apache-2.0
// The op registry (an explicit list, ops.inc) and the layout rules read from index notation.
#include "ops/op.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/id.h"
#include "ops/rules.h"

namespace hocket::ops {

#define HOCKET_OP_FILE(file)         \
  namespace file {                   \
  void add_to(std::vector<Op>& ops); \
  }
#include "ops/ops.inc"
#undef HOCKET_OP_FILE

namespace {

using Names = std::map<std::string, const Op*, std::less<>>;

/// Carries out a definition on types.
class Builder final : public Definition {
 public:
  Builder(const Names& names, std::span<const TensorType> in) : names_(names) {
    graph_.types.assign(in.begin(), in.end());
  }

  std::vector<int> apply(std::string_view op, Attrs attrs, std::vector<int> in) override {
    const auto found = names_.find(op);
    HOCKET_CHECK(found != names_.end(), "a definition applies {}, which is no op", op);
    std::vector<TensorType> types;
    for (int value : in) {
      types.push_back(type(value));
    }
    std::vector<int> out;
    for (TensorType& made : found->second->infer(attrs, types)) {
      out.push_back(static_cast<int>(graph_.types.size()));
      graph_.types.push_back(std::move(made));
    }
    graph_.steps.push_back({found->second, std::move(attrs), std::move(in), out});
    return out;
  }
  const TensorType& type(int value) const override { return graph_.types.at(value); }

  /// Returns the decomposition of the op. Called once.
  Decomposition decompose(const Op& op, const Attrs& attrs) {
    if (!op.define) return {};
    const std::vector<TensorType> types = graph_.types;
    std::vector<int> in(types.size());
    std::iota(in.begin(), in.end(), 0);
    graph_.out = op.define(*this, attrs, in);
    if (graph_.out.empty()) return {};
    const std::vector<TensorType> want = op.infer(attrs, types);
    HOCKET_CHECK(want.size() == graph_.out.size(), "{} has {} outputs, its definition {}", op.name,
                 want.size(), graph_.out.size());
    for (size_t i = 0; i < want.size(); ++i) {
      HOCKET_CHECK(type(graph_.out[i]) == want[i], "output {} of {} is {}, by its definition {}", i,
                   op.name, graph::to_string(want[i]), graph::to_string(type(graph_.out[i])));
    }
    HOCKET_CHECK(op.defined != Defined::alias || graph_.out == graph_.steps.back().out,
                 "{} is also its definition, which ends in no one application", op.name);
    return std::move(graph_);
  }

 private:
  const Names& names_;
  Decomposition graph_;
};

/// An op and its number of inputs, which may decide whether it is primitive.
using Use = std::pair<const Op*, size_t>;

/// Decomposes an application recursively. `path`: the applications above it.
void follow(const Names& names, const Op& op, const Attrs& attrs, std::span<const TensorType> in,
            std::vector<Use>& path) {
  const Use use{&op, in.size()};
  HOCKET_CHECK(std::find(path.begin(), path.end(), use) == path.end(),
               "the definition of {} comes back to it", op.name);
  path.push_back(use);
  const Decomposition graph = Builder(names, in).decompose(op, attrs);
  for (const Decomposition::Step& step : graph.steps) {
    std::vector<TensorType> types;
    for (int value : step.in) {
      types.push_back(graph.types[value]);
    }
    follow(names, *step.op, step.attrs, types, path);
  }
  path.pop_back();
}

struct Registry {
  std::vector<Op> ops;
  std::vector<const Op*> pointers;
  Names by_name;
  std::array<const Op*, kNumMeanings> by_meaning = {};
  Registry() {
#define HOCKET_OP_FILE(file) file::add_to(ops);
#include "ops/ops.inc"
#undef HOCKET_OP_FILE
    for (const Op& op : ops) {
      pointers.push_back(&op);
      HOCKET_CHECK(by_name.emplace(op.name, &op).second, "op {} is listed twice", op.name);
      if (op.meaning == Meaning::uninterpreted) continue;
      const Op*& known = by_meaning[place_of(op.meaning)];
      HOCKET_CHECK(known == nullptr, "ops {} and {} mean the same", known->name, op.name);
      known = &op;
    }
    check_definitions(ops);
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

/// Returns whether a letter is the first of several that support ties.
bool splits_as_tied(const LayoutRule& rule, char letter) {
  return tied(rule, letter) == letter &&
         std::any_of(rule.support.begin(), rule.support.end(),
                     [&](const Support& s) { return s.letter == letter || s.by == letter; });
}

/// Returns whether partial outputs are tensors by themselves.
bool combines(Monoid monoid) { return monoid == Monoid::sum || monoid == Monoid::max; }

/// The signature in which a letter is split, or as well all those that are tied to it.
AxisSignature split_along(const Op& op, const Operands& rule, char letter, bool with_tied) {
  AxisSignature signature;
  signature.letter = letter;
  signature.tied = with_tied;
  const auto dim_of = [&](const std::string& operand) {
    const auto has = [&](char other) {
      return (with_tied ? tied(op.layout, other) : other) == letter;
    };
    return static_cast<size_t>(std::find_if(operand.begin(), operand.end(), has) - operand.begin());
  };
  for (size_t i = 0; i < rule.in.size(); ++i) {
    Placement placed;
    if (const size_t dim = dim_of(rule.in[i]); dim < rule.in[i].size()) {
      placed = Placement::split(static_cast<int>(dim));
    } else if (rule.in_partial_of[i].find(letter) != std::string::npos) {
      placed = Placement::partial();
    }
    signature.in.push_back(placed);
  }
  for (const std::string& operand : rule.out) {
    const size_t dim = dim_of(operand);
    signature.out.push_back(dim == operand.size() ? Placement::partial(op.layout.monoid(letter))
                                                  : Placement::split(static_cast<int>(dim)));
  }
  return signature;
}

std::vector<AxisSignature> enumerate(const Op& op, const Operands& rule) {
  // Everything that may lie on one mesh axis: all operands whole; for every letter that may be
  // split, the operands that have it split there, and outputs that lack it partial over it; where
  // the op is linear in an input (or in all of them together), that input partial and with it all
  // outputs; and letters that go by position, each by itself.
  const size_t num_in = rule.in.size();
  const size_t num_out = rule.out.size();
  std::vector<AxisSignature> list;
  list.push_back({std::vector<Placement>(num_in), std::vector<Placement>(num_out)});
  const std::vector<Placement> whole = list[0].in;
  const auto in_an_output = [&](char letter) {
    return std::any_of(rule.out.begin(), rule.out.end(), [&](const std::string& operand) {
      return operand.find(letter) != std::string::npos;
    });
  };
  for (char letter : std::string_view(op.layout.split)) {
    const bool ties = splits_as_tied(op.layout, letter);
    if (op.layout.is_positional(letter) && !ties) continue;
    if (!ties && !combines(op.layout.monoid(letter))) continue;
    AxisSignature signature = split_along(op, rule, letter, ties);
    // A letter that no input has (or that this alternative lacks) gives no signature.
    if (signature.in == whole) continue;
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
  for (char letter : std::string_view(op.layout.positional)) {
    if (!combines(op.layout.monoid(letter))) continue;
    AxisSignature signature = split_along(op, rule, letter, false);
    if (signature.in == whole && !in_an_output(letter)) continue;
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

std::pair<int, int> place_in_outputs(const Letters& letters, char letter) {
  for (const std::string& input : letters.in) {
    if (input.find(letter) != std::string::npos) return {-1, -1};
  }
  for (size_t output = 0; output < letters.out.size(); ++output) {
    const size_t dim = letters.out[output].find(letter);
    if (dim != std::string::npos) return {static_cast<int>(output), static_cast<int>(dim)};
  }
  return {-1, -1};
}

bool makes(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
           std::span<const TensorType> out) {
  std::vector<TensorType> want = op.infer(attrs, in);
  if (want.size() != out.size()) return false;
  for (const char* letter = op.layout.positional; *letter; ++letter) {
    const auto [output, dim] = place_in_outputs(letters(op, in, want), *letter);
    if (output < 0 || out[output].dims.size() != want[output].dims.size()) continue;
    if (out[output].dims[dim] < want[output].dims[dim]) {
      want[output].dims[dim] = out[output].dims[dim];
    }
  }
  return std::equal(want.begin(), want.end(), out.begin());
}

bool acts_by_element(const LayoutRule& rule, const Letters& letters, std::string_view dims) {
  // Requires all dims free; an operand with one of them has all, in this order.
  if (letters.any || dims.empty()) return false;
  for (char letter : dims) {
    if (std::string_view(rule.split).find(letter) == std::string_view::npos) return false;
    if (rule.is_positional(letter) || rule.monoid(letter) != Monoid::sum) return false;
  }
  const auto fits = [&](const std::string& operand) {
    return operand == dims || operand.find_first_of(dims) == std::string::npos;
  };
  const auto all_fit = [&](const std::vector<std::string>& operands) {
    return std::all_of(operands.begin(), operands.end(), fits);
  };
  if (!all_fit(letters.in) || !all_fit(letters.out)) return false;
  return std::all_of(letters.in_partial_of.begin(), letters.in_partial_of.end(),
                     [](const std::string& letter) { return letter.empty(); });
}

std::vector<AxisSignature> signatures(const Op& op, std::span<const TensorType> in,
                                      std::span<const TensorType> out) {
  if (takes_any(op)) {
    return {{std::vector<Placement>(in.size()), std::vector<Placement>(out.size())}};
  }
  return enumerate(op, alternative(op, in, out));
}

bool LayoutRule::is_positional(char letter) const {
  return std::string_view(positional).find(letter) != std::string_view::npos;
}

Monoid LayoutRule::monoid(char letter) const {
  for (const Contraction& contraction : contractions) {
    if (contraction.letter == letter) return contraction.monoid;
  }
  return Monoid::sum;
}

const Support* LayoutRule::support_of(char letter, int output) const {
  for (const Support& one : support) {
    if (one.letter == letter && one.output == output) return &one;
  }
  return nullptr;
}

char tied(const LayoutRule& rule, char letter) {
  for (const Support& support : rule.support) {
    if (support.letter != letter && support.by != letter) continue;
    const char other = support.letter == letter ? support.by : support.letter;
    for (char first : std::string_view(rule.split)) {
      if (first == letter || first == other) return first;
    }
  }
  return letter;
}

std::string cut_support(const Op& op, const Attrs& attrs, char letter,
                        const std::function<int64_t(char)>& part, int64_t parts) {
  // Every part of a split is equivalent to one of two cases: the first of two parts, which may need
  // the second, or the second.
  for (const Support& support : op.layout.support) {
    if (tied(op.layout, support.letter) != tied(op.layout, letter)) continue;
    const int64_t asks = part(support.by);
    const int64_t asked = part(support.letter);
    for (int64_t number : {0, 1}) {
      const int64_t begin = number * asks;
      const int64_t all = support.of_shares ? parts : 2;
      const graph::Run needs = support.of(attrs, {begin, asks}, all * asks, all * asked);
      const graph::Run has{number * asked, asked};
      if (asks == 0 || needs.length == 0 ||
          (needs.begin >= has.begin && needs.begin + needs.length <= has.begin + has.length)) {
        continue;
      }
      return fmt::format("{} in [{}, {}) needs {} in [{}, {})", support.by, begin, begin + asks,
                         support.letter, needs.begin, needs.begin + needs.length);
    }
  }
  return "";
}

void check_definitions(const std::vector<Op>& ops) {
  Names names;
  for (const Op& op : ops) {
    names.emplace(op.name, &op);
  }
  for (const Op& op : ops) {
    if (!op.define || !op.samples) continue;
    for (const Sample& sample : op.samples()) {
      std::vector<Use> path;
      follow(names, op, sample.attrs, sample.inputs(), path);
    }
  }
}

Decomposition decompose(const Op& op, const Attrs& attrs, std::span<const TensorType> in) {
  return Builder(registry().by_name, in).decompose(op, attrs);
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

bool is_short(const TensorType& type) {
  return !type.encoding && graph::is_floating(type.dtype) && graph::bits_of(type.dtype) >= 8 &&
         graph::bits_of(type.dtype) < 32;
}

int64_t workspace_of(const Op& op, const Call& call) {
  // Copies come first, then the kernel's workspace for f32 operands. An output updated in place
  // uses the copy of its input.
  std::vector<TensorType> in(call.in.begin(), call.in.end());
  std::vector<TensorType> out(call.out.begin(), call.out.end());
  int64_t copies = 0;
  const auto widen = [&](TensorType& type, bool has_copy) {
    if (op.takes_any_type || !is_short(type)) return;
    type.dtype = DType::f32;
    copies += has_copy ? 0 : round_up(type.bytes(), 64);
  };
  for (TensorType& type : in) {
    widen(type, false);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    widen(out[i], std::any_of(op.inplace.begin(), op.inplace.end(), [i](const auto& pair) {
            return static_cast<size_t>(pair.second) == i;
          }));
  }
  if (!op.workspace) return copies;
  return copies + round_up(op.workspace({call.attrs, in, out, call.experts, call.symbols}), 64);
}

Cost cost_of(const Op& op, Call call) {
  if (!reads_counts(call.in)) {
    call.experts = 0;
  }
  const int64_t workspace = workspace_of(op, call);
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
