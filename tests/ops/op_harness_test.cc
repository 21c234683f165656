// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Generated from every op's sample cases. Results are finite and the same in f64, f32, bf16 and
// f16. Gradients equal finite differences, and in other types those of f64. Accumulation adds.
// Nothing beyond operands and declared workspace is touched. Shape rules refuse shapes that the
// layout notation excludes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <set>

#include "base/error.h"
#include "tests/compare_util.h"
#include "tests/ops/op_util.h"

namespace hocket::optest {
namespace {

constexpr uint64_t kSeeds[] = {1, 2, 3};

class EveryOp : public testing::TestWithParam<const Op*> {
 protected:
  const Op& op() const { return *GetParam(); }
  std::vector<Sample> samples() const {
    return op().samples ? op().samples() : std::vector<Sample>{};
  }
};

std::string name_of(const testing::TestParamInfo<const Op*>& info) { return info.param->name; }

// Tests of properties that only some ops have run for these alone; PartsOfTheList prints the ops
// left out.
class OpOfEveryPrecision : public EveryOp {};
class OpWithAccumulators : public EveryOp {};
class OpWithGradient : public EveryOp {};

/// Returns whether the op accepts elements of any type.
bool takes_any_elements(const Op& op) { return op.name == "copy" || op.name == "cast"; }

Problem types_alone(const Op& op, const Sample& sample) {
  Problem p;
  p.op = &op;
  p.attrs = sample.attrs;
  for (const TensorType& type : sample.inputs()) {
    p.values.push_back({type, {}});
  }
  p.num_inputs = p.values.size();
  return p;
}

bool has_compute_dtype(const Op& op) {
  if (op.name == "cast") return false;  // its result differs by its rounding
  for (const Sample& s : op.samples()) {
    Problem p = types_alone(op, s);  // nothing runs before main
    if (to_dtype(p, DType::f32)) return true;
  }
  return false;
}
bool has_accumulators(const Op& op) { return !op.accumulates.empty(); }
bool has_gradient(const Op& op) { return op.grad != nullptr; }

std::vector<const Op*> ops_that(bool (*is)(const Op&), bool wanted = true) {
  std::vector<const Op*> list;
  for (const Op* op : ops::all()) {
    if (is(*op) == wanted) {
      list.push_back(op);
    }
  }
  return list;
}

/// Tests of the rules of an op: types, layouts and costs. No kernel runs.
class EveryRule : public testing::TestWithParam<const Op*> {};

TEST_P(EveryRule, HasSamplesOfEveryNotation) {
  const Op& op = *GetParam();
  ASSERT_TRUE(op.samples && !op.samples().empty()) << op.name << " has no sample case";
  const std::vector<Notation> list = notations(op);
  std::vector<bool> seen(list.size(), false);
  for (const Sample& s : op.samples()) {
    const std::span<const TensorType> in = s.inputs();
    const std::vector<TensorType> out = op.infer(s.attrs, in);
    if (list.empty()) continue;
    const Notation* match = matching(list, in, out);
    ASSERT_NE(match, nullptr) << op.name << " " << s.name << " fits none of " << op.layout.notation;
    seen[match - list.data()] = true;
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_TRUE(seen[i]) << op.name << ": no sample for alternative " << i << " of "
                         << op.layout.notation;
  }
}

TEST_P(EveryRule, CostsAreSane) {
  const Op& op = *GetParam();
  for (const Sample& s : op.samples()) {
    SCOPED_TRACE(s.name);
    const std::span<const TensorType> in = s.inputs();
    const std::vector<TensorType> out = op.infer(s.attrs, in);
    const ops::Cost cost = ops::cost_of(op, {s.attrs, in, out});
    int64_t written = 0;  // an in-place output may be written in part only
    for (size_t i = 0; i < out.size(); ++i) {
      const bool in_place =
          std::any_of(op.inplace.begin(), op.inplace.end(),
                      [&](const auto& pair) { return static_cast<size_t>(pair.second) == i; });
      written += in_place ? 0 : out[i].bytes();
    }
    EXPECT_GE(cost.flops, 0);
    EXPECT_TRUE(std::isfinite(cost.flops));
    EXPECT_GE(cost.bytes, written);
    EXPECT_GE(cost.workspace, 0);
    EXPECT_EQ(cost.workspace % 64, 0);
  }
}

/// Returns the types of a sample's inputs with f32 in place of f64, where the op allows it.
std::vector<TensorType> narrow_types(const Op& op, const Sample& sample) {
  Problem p = types_alone(op, sample);
  to_dtype(p, DType::f32);
  return p.in_types();
}

/// Returns the letters with two sizes in some sample, as for the heads of queries and of keys.
std::set<char> loose_letters(const Op& op) {
  std::set<char> loose;
  const std::vector<Notation> list = notations(op);
  for (const Sample& s : op.samples()) {
    const std::span<const TensorType> in = s.inputs();
    const Notation* n = matching(list, in, op.infer(s.attrs, in));
    std::map<char, int64_t> size;
    for (size_t i = 0; n && i < in.size(); ++i) {
      for (size_t d = 0; d < n->in[i].size(); ++d) {
        if (size.emplace(n->in[i][d], in[i].dims[d]).first->second != in[i].dims[d]) {
          loose.insert(n->in[i][d]);
        }
      }
    }
  }
  return loose;
}

/// Returns whether equal letters mean equal sizes for these operands under some alternative.
bool consistent(const Op& op, std::span<const TensorType> in, std::span<const TensorType> out) {
  const std::vector<Notation> list = notations(op);
  if (list.empty()) return true;
  const Notation* n = matching(list, in, out);
  if (!n) return false;
  const std::set<char> loose = loose_letters(op);
  std::map<char, int64_t> size;
  auto check = [&](const std::vector<std::string>& letters, std::span<const TensorType> types) {
    for (size_t i = 0; i < types.size(); ++i) {
      for (size_t d = 0; d < letters[i].size(); ++d) {
        if (!loose.count(letters[i][d]) &&
            size.emplace(letters[i][d], types[i].dims[d]).first->second != types[i].dims[d]) {
          return false;
        }
      }
    }
    return true;
  };
  return check(n->in, in) && check(n->out, out);
}

TEST_P(EveryRule, RefusesWrongOperands) {
  const Op& op = *GetParam();
  int refused = 0;
  for (const Sample& s : op.samples()) {
    const size_t n = s.num_inputs < 0 ? s.types.size() : static_cast<size_t>(s.num_inputs);
    const std::vector<TensorType> good(s.types.begin(), s.types.begin() + static_cast<int64_t>(n));
    auto expect_refused_or_sound = [&](const std::vector<TensorType>& in, const std::string& what,
                                       bool must_refuse) {
      std::vector<TensorType> out;
      try {
        out = op.infer(s.attrs, in);
      } catch (const Error&) {
        ++refused;
        return;
      }
      EXPECT_FALSE(must_refuse) << op.name << " " << s.name << " takes " << what;
      EXPECT_TRUE(consistent(op, in, out)) << op.name << " " << s.name << " takes " << what;
    };
    for (size_t i = 0; i < n; ++i) {
      const std::string at = "input " + std::to_string(i);
      for (size_t d = 0; d < good[i].dims.size(); ++d) {
        auto in = good;
        in[i].dims[d] += 1;
        expect_refused_or_sound(in, at + " as " + graph::to_string(in[i]), false);
      }
      auto in = good;
      in[i].dims.push_back(1);
      expect_refused_or_sound(in, at + " as " + graph::to_string(in[i]), false);
      in = good;
      in[i].dims.pop_back();
      expect_refused_or_sound(in, at + " as " + graph::to_string(in[i]), false);
      // Kernels get one compute dtype, so another type of one operand among several is an error.
      for (DType dtype : {DType::f32, DType::i32, DType::i64}) {
        if (dtype == good[i].dtype) continue;
        bool alone = graph::is_floating(dtype) && graph::is_floating(good[i].dtype) &&
                     std::count_if(good.begin(), good.end(), [](const TensorType& t) {
                       return graph::is_floating(t.dtype) && t.numel() > 1;
                     }) == 1;
        in = good;
        in[i].dtype = dtype;
        alone |= in == narrow_types(op, s);  // all others are f64 whatever the compute dtype
        if (!takes_any_elements(op)) {
          expect_refused_or_sound(in, at + " as " + graph::to_string(in[i]), !alone);
        }
      }
      if (good[i].routed()) {
        in = good;
        in[i].top_k = 0;
        expect_refused_or_sound(in, at + " as " + graph::to_string(in[i]), true);
      }
      if (op.name == "clip_coef") {
        continue;  // it takes any number of norms
      }
      in = good;
      in.erase(in.begin() + static_cast<int64_t>(i));
      expect_refused_or_sound(in, "no " + at, true);
    }
    if (op.name == "clip_coef") continue;
    auto in = good;
    in.push_back({DType::f64, {2, 2}});
    expect_refused_or_sound(in, "one more input", true);
  }
  EXPECT_GT(refused, 0);
}

/// Puts a symbol in place of every dim of one letter. Either the op refuses it, or its outputs have
/// the symbol exactly where the notation has the letter. At a smaller value the types are those of
/// that size, and the workspace planned for the bound is enough.
TEST_P(EveryRule, OutputsHaveTheSymbolsOfTheirLetters) {
  const Op& op = *GetParam();
  const std::vector<Notation> list = notations(op);
  const std::set<char> loose = loose_letters(op);
  int carried = 0;
  for (const Sample& s : op.samples()) {
    const size_t n = s.num_inputs < 0 ? s.types.size() : static_cast<size_t>(s.num_inputs);
    const std::vector<TensorType> plain(s.types.begin(), s.types.begin() + static_cast<int64_t>(n));
    const Notation* notation = matching(list, plain, op.infer(s.attrs, plain));
    if (!notation) continue;
    std::map<char, int64_t> letters;
    for (size_t i = 0; i < n; ++i) {
      for (size_t d = 0; d < notation->in[i].size(); ++d) {
        letters[notation->in[i][d]] = plain[i].dims[d];
      }
    }
    const auto with = [&](char letter, const graph::Dim& dim) {
      std::vector<TensorType> in = plain;
      for (size_t i = 0; i < n; ++i) {
        for (size_t d = 0; d < notation->in[i].size(); ++d) {
          if (notation->in[i][d] == letter) {
            in[i].dims[d] = dim;
          }
        }
      }
      return in;
    };
    for (const auto& [letter, size] : letters) {
      if (loose.contains(letter)) continue;
      SCOPED_TRACE(op.name + " " + s.name + " letter " + letter);
      const graph::Symbol symbol{"n", size, size, 1};
      const std::vector<TensorType> in = with(letter, graph::Dim::of(0, symbol));
      std::vector<TensorType> out;
      try {
        out = op.infer(s.attrs, in);
      } catch (const Error&) {
        continue;
      }
      ++carried;
      for (size_t o = 0; o < out.size(); ++o) {
        for (size_t d = 0; d < notation->out[o].size(); ++d) {
          EXPECT_EQ(out[o].dims[d].symbolic(), notation->out[o][d] == letter)
              << "output " << o << " is " << graph::to_string(out[o]);
        }
      }
      const ops::Cost bound = ops::cost_of(op, {s.attrs, in, out, 0, std::span(&symbol, 1)});
      for (int64_t value = 1; value <= size; ++value) {
        const std::vector<TensorType> then = with(letter, value);
        std::vector<TensorType> made;
        try {
          made = op.infer(s.attrs, then);
        } catch (const Error&) {
          continue;  // an odd head dim, fewer experts than a token visits
        }
        for (size_t o = 0; o < out.size(); ++o) {
          EXPECT_EQ(out[o].at(std::vector{value}), made[o]) << "of " << value;
        }
        EXPECT_LE(ops::cost_of(op, {s.attrs, then, made}).workspace, bound.workspace)
            << "of " << value;
      }
    }
  }
  if (!list.empty()) {
    EXPECT_GT(carried, 0) << op.name << " takes no symbol anywhere";
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryRule, testing::ValuesIn(ops::all()), name_of);

TEST_P(EveryOp, WritesItsOutputsAndNothingElse) {
  for (const Sample& s : samples()) {
    for (uint64_t seed : kSeeds) {
      const Problem p = make(op(), s, seed);
      SCOPED_TRACE(p.name);
      // apply() itself expects intact guards and inputs and no stale memory in the results.
      const std::vector<Value> one = apply(op(), p.attrs, p.inputs());
      for (size_t o = 0; o < one.size(); ++o) {
        for (double x : one[o].v) {
          ASSERT_TRUE(std::isfinite(x)) << "output " << o;
        }
      }
      CallOptions four;
      four.threads = 4;
      const std::vector<Value> many = apply(op(), p.attrs, p.inputs(), four);
      for (size_t o = 0; o < one.size(); ++o) {
        EXPECT_EQ(one[o].v, many[o].v) << "output " << o << " depends on the number of threads";
      }
    }
  }
}

/// A type, and the allowed distance of an op's results from f64: the rounding of its results and,
/// for a gradient, of the values kept by the forward pass.
struct Precision {
  DType dtype;
  double result, gradient;
};
constexpr Precision kPrecisions[] = {
    {DType::f32, 1e-5, 1e-4}, {DType::bf16, 0x1p-8, 0x1p-5}, {DType::f16, 0x1p-11, 0x1p-8}};

/// Returns a problem in f64 with the values of another type.
Problem widened(const Problem& narrow, const Sample& sample) {
  Problem wide = narrow;
  wide.attrs = sample.attrs;
  for (size_t i = 0; i < wide.values.size(); ++i) {
    wide.values[i].type = sample.types[i];
  }
  return wide;
}

TEST_P(OpOfEveryPrecision, KernelEqualsTheDefinitionInEveryPrecision) {
  for (const Sample& s : samples()) {
    for (const Precision& precision : kPrecisions) {
      for (uint64_t seed : kSeeds) {
        Problem narrow = make(op(), s, seed);
        ASSERT_TRUE(to_dtype(narrow, precision.dtype))
            << s.name << " has no operand of the compute dtype, others have";
        const Problem wide = widened(narrow, s);
        SCOPED_TRACE(wide.name + " " + graph::to_string(precision.dtype));
        const std::vector<Value> a = apply(op(), narrow.attrs, narrow.inputs());
        const std::vector<Value> b = apply(op(), wide.attrs, wide.inputs());
        for (size_t o = 0; o < a.size(); ++o) {
          if (graph::is_floating(a[o].type.dtype)) {
            EXPECT_LE(relative_error(a[o].v, b[o].v), precision.result) << "output " << o;
          } else {
            EXPECT_EQ(a[o].v, b[o].v) << "output " << o;
          }
        }
        CallOptions four;
        four.threads = 4;
        const std::vector<Value> many = apply(op(), narrow.attrs, narrow.inputs(), four);
        for (size_t o = 0; o < a.size(); ++o) {
          EXPECT_EQ(a[o].v, many[o].v) << "output " << o << " depends on the number of threads";
        }
      }
    }
  }
}

TEST_P(OpOfEveryPrecision, AddsToAccumulatorsInEveryPrecision) {
  const uint32_t can = op().accumulates.bits();
  for (const Sample& s : samples()) {
    for (const Precision& precision : kPrecisions) {
      if (can == 0) continue;
      Problem p = make(op(), s, 1);
      ASSERT_TRUE(to_dtype(p, precision.dtype));
      SCOPED_TRACE(p.name + " " + graph::to_string(precision.dtype));
      const std::vector<Value> plain = apply(op(), p.attrs, p.inputs());
      CallOptions call;
      call.accumulate = can & ((1u << plain.size()) - 1);
      call.start = plain;  // of the type's numbers
      const std::vector<Value> sum = apply(op(), p.attrs, p.inputs(), call);
      for (size_t o = 0; o < plain.size(); ++o) {
        std::vector<double> want = plain[o].v;
        for (double& x : want) {
          x *= call.accumulate >> o & 1 ? 2 : 1;
        }
        EXPECT_LE(relative_error(sum[o].v, want), precision.result) << "output " << o;
      }
    }
  }
}

TEST_P(OpWithAccumulators, AddsItsResultToTheAccumulator) {
  const uint32_t can = op().accumulates.bits();
  for (const Sample& s : samples()) {
    const Problem p = make(op(), s, 1);
    SCOPED_TRACE(p.name);
    const std::vector<Value> plain = apply(op(), p.attrs, p.inputs());
    Rng rng(17);
    CallOptions call;
    for (const Value& v : plain) {
      call.start.push_back(v);
      for (double& x : call.start.back().v) {
        x = rng.normal();
      }
    }
    for (uint32_t bits = 1; bits <= can; ++bits) {
      if (bits & ~can) continue;
      call.accumulate = bits;
      const std::vector<Value> sum = apply(op(), p.attrs, p.inputs(), call);
      for (size_t o = 0; o < plain.size(); ++o) {
        std::vector<double> want = plain[o].v;
        if (bits >> o & 1) {
          for (size_t i = 0; i < want.size(); ++i) {
            want[i] += call.start[o].v[i];
          }
        }
        EXPECT_LE(relative_error(sum[o].v, want), 1e-13)
            << "accumulate " << bits << " output " << o;
      }
    }
  }
}

// ---- Gradients ----

double weighted(const std::vector<Value>& out, const std::vector<Value>& weights) {
  double sum = 0;
  for (size_t o = 0; o < out.size(); ++o) {
    for (size_t i = 0; i < weights[o].v.size(); ++i) {
      sum += weights[o].v[i] * out[o].v[i];
    }
  }
  return sum;
}

struct Differences {
  double value = 0;
  bool routes_kept = true;
};

/// d(sum weights * out) / d(element): central differences of fourth order.
Differences difference(Problem& p, size_t input, size_t element, double h,
                       const std::vector<Value>& out, const std::vector<Value>& weights) {
  double& x = p.values[input].v[element];
  const double at = x;
  Differences d;
  CallOptions call;
  call.guarded = false;
  auto loss = [&](double to) {
    x = to;
    const std::vector<Value> moved = apply(*p.op, p.attrs, p.inputs(), call);
    for (size_t o = 0; o < out.size(); ++o) {
      if (!graph::is_floating(out[o].type.dtype)) {
        d.routes_kept &= moved[o].v == out[o].v;
      }
    }
    return weighted(moved, weights);
  };
  d.value = (8 * (loss(at + h) - loss(at - h)) - (loss(at + 2 * h) - loss(at - 2 * h))) / (12 * h);
  x = at;
  return d;
}

std::vector<size_t> differentiated(const Op& op, const Problem& p) {
  std::vector<size_t> list;
  for (int i : op.fd_inputs) {
    list.push_back(static_cast<size_t>(i));
  }
  if (list.empty()) {
    for (size_t i = 0; i < p.num_inputs; ++i) {
      if (graph::is_floating(p.values[i].type.dtype)) {
        list.push_back(i);
      }
    }
  }
  return list;
}

/// Returns random weights for the outputs with gradients that the rule reads. A rule that reads
/// none is a loss's; its weight is 1.
std::vector<Value> output_weights(const std::vector<Value>& out, const std::vector<bool>& asked,
                                  uint64_t seed) {
  Rng rng(seed);
  std::vector<Value> weights;
  const bool loss = std::none_of(asked.begin(), asked.end(), [](bool a) { return a; });
  for (size_t o = 0; o < out.size(); ++o) {
    weights.push_back({out[o].type, {}});
    if (loss && o == 0) {
      weights.back().v = {1.0};
    }
    if (!asked[o] || !graph::is_floating(out[o].type.dtype)) continue;
    for (size_t i = 0; i < out[o].v.size(); ++i) {
      weights.back().v.push_back(rng.normal());
    }
  }
  return weights;
}

/// Compares every element of every gradient with finite differences. An element far below the
/// largest of its tensor is measured against a thousandth of that one. None is measured against
/// less than a millionth of the sum, which finite differences cannot resolve.
void expect_gradient(Problem p, const Gradient& g, const std::vector<Value>& out,
                     const std::vector<Value>& weights, const std::vector<Value>& before) {
  double terms = 0;
  for (size_t o = 0; o < out.size(); ++o) {
    for (size_t k = 0; k < weights[o].v.size(); ++k) {
      terms += std::abs(weights[o].v[k] * out[o].v[k]);
    }
  }
  for (size_t i : differentiated(*p.op, p)) {
    ASSERT_EQ(g.grad[i].v.size(), p.values[i].v.size()) << p.name << ": no gradient of input " << i;
    ASSERT_EQ(g.grad[i].type, p.values[i].type) << p.name << ": gradient of input " << i;
    std::vector<double> grad = g.grad[i].v;
    if (!before.empty()) {
      for (size_t e = 0; e < grad.size(); ++e) {
        grad[e] -= before[i].v[e];
      }
    }
    double top = 0;
    for (double x : grad) {
      top = std::max(top, std::abs(x));
    }
    for (size_t e = 0; e < grad.size(); ++e) {
      double best = INFINITY, value = 0;
      // Truncation falls with the step, rounding grows: the better of several counts.
      for (double h : {1e-3, 2e-4, 1e-2, 3e-5}) {
        const Differences d = difference(p, i, e, h, out, weights);
        if (!d.routes_kept) continue;
        // Both are zero, and so is the scale, where no target counts.
        const double apart = std::abs(d.value - grad[e]);
        const double error =
            apart == 0 ? 0 : apart / std::max({std::abs(grad[e]), 1e-3 * top, 1e-6 * terms});
        if (error < best) {
          best = error, value = d.value;
        }
        if (best <= p.sample->fd_tolerance) break;
      }
      ASSERT_LE(best, p.sample->fd_tolerance)
          << p.name << ": input " << i << ", element " << e << ": gradient " << grad[e]
          << ", differences " << value;
    }
  }
}

TEST_P(OpWithGradient, EqualsFiniteDifferences) {
  for (const Sample& s : samples()) {
    if (!s.smooth) continue;
    for (uint64_t seed : {1, 2}) {
      const Problem p = make(op(), s, seed);
      SCOPED_TRACE(p.name);
      const std::vector<Value> out = apply(op(), p.attrs, p.inputs());
      const std::vector<bool> all(p.num_inputs, true);
      // A first run gives a gradient of every output, to see which ones the rule reads.
      std::vector<Value> weights = output_weights(out, std::vector<bool>(out.size(), true), seed);
      std::vector<bool> asked;
      try {
        asked = gradient(p, out, weights, all).asked;
      } catch (const Error& e) {
        // Some forms of an op have no gradient; the error must state this.
        EXPECT_NE(std::string(e.what()).find("has no gradient"), std::string::npos) << e.what();
        continue;
      }
      weights = output_weights(out, asked, seed + 10);
      const Gradient g = gradient(p, out, weights, all);
      expect_gradient(p, g, out, weights, {});
      if (HasFatalFailure()) return;

      // The gradient is added to an earlier contribution, in place if the op can accumulate.
      std::vector<Value> before(p.num_inputs);
      Rng rng(seed + 20);
      for (size_t i = 0; i < p.num_inputs; ++i) {
        before[i] = p.values[i];
        for (double& x : before[i].v) {
          x = rng.normal();
        }
      }
      const Gradient more = gradient(p, out, weights, all, before);
      for (size_t i : differentiated(op(), p)) {
        std::vector<double> want = g.grad[i].v;
        for (size_t e = 0; e < want.size(); ++e) {
          want[e] += before[i].v[e];
        }
        EXPECT_LE(relative_error(more.grad[i].v, want), 1e-13) << "accumulated, input " << i;
      }
      // The gradient of an input is the same if no other is asked for.
      for (size_t i : differentiated(op(), p)) {
        std::vector<bool> needs(p.num_inputs, false);
        needs[i] = true;
        EXPECT_LE(relative_error(gradient(p, out, weights, needs).grad[i].v, g.grad[i].v), 1e-13)
            << "alone, input " << i;
      }
      // The gradient of an output may be missing, unless the rule's error states that it needs it.
      for (size_t o = 0; o < out.size(); ++o) {
        if (!asked[o] || std::count(asked.begin(), asked.end(), true) < 2) continue;
        std::vector<Value> fewer = weights;
        fewer[o].v.clear();
        Gradient part;
        try {
          part = gradient(p, out, fewer, all);
        } catch (const Error&) {
          continue;
        }
        expect_gradient(p, part, out, fewer, {});
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// Runs the gradient rule in a narrower type, on results of the op in that type.
TEST_P(OpWithGradient, GradientOfEveryPrecisionMatchesF64) {
  if (!has_compute_dtype(op())) return;
  for (const Sample& s : samples()) {
    if (!s.smooth) continue;
    for (const Precision& precision : kPrecisions) {
      Problem narrow = make(op(), s, 1);
      ASSERT_TRUE(to_dtype(narrow, precision.dtype));
      const Problem wide = widened(narrow, s);
      SCOPED_TRACE(wide.name + " " + graph::to_string(precision.dtype));
      const std::vector<Value> made = apply(op(), narrow.attrs, narrow.inputs());
      const std::vector<Value> out = apply(op(), wide.attrs, wide.inputs());
      const std::vector<bool> all(wide.num_inputs, true);
      std::vector<Value> weights = output_weights(out, std::vector<bool>(out.size(), true), 11);
      Gradient want, got;
      try {
        want = gradient(wide, out, weights, all);
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("has no gradient"), std::string::npos) << e.what();
        continue;
      }
      for (size_t o = 0; o < made.size(); ++o) {
        weights[o].type = made[o].type;
      }
      got = gradient(narrow, made, weights, all);
      for (size_t i : differentiated(op(), wide)) {
        // Where addends cancel (keys of documents of one token), the tolerance is relative to the
        // addends.
        const std::vector<double>& exact = want.grad[i].v;
        const double size = test::distance(exact, std::vector<double>(exact.size()));
        EXPECT_LE(test::distance(got.grad[i].v, exact), precision.gradient * std::max(size, 1.0))
            << "input " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryOp, testing::ValuesIn(ops::all()), name_of);
INSTANTIATE_TEST_SUITE_P(Ops, OpOfEveryPrecision, testing::ValuesIn(ops_that(has_compute_dtype)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Ops, OpWithAccumulators, testing::ValuesIn(ops_that(has_accumulators)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Ops, OpWithGradient, testing::ValuesIn(ops_that(has_gradient)), name_of);

/// `sum`, `identity` and `empty` are the sums of two inputs, one and none.
TEST(OpsByMeaning, SumTheirInputs) {
  struct Case {
    ops::Meaning meaning;
    size_t num_inputs;
  };
  for (const Case& c : {Case{ops::Meaning::sum, 2}, Case{ops::Meaning::identity, 1},
                        Case{ops::Meaning::empty, 0}}) {
    const Op& op = ops::of(c.meaning);
    EXPECT_EQ(op.meaning, c.meaning) << op.name;
    for (const Sample& s : op.samples()) {
      const Problem p = make(op, s, 1);
      SCOPED_TRACE(p.name);
      ASSERT_EQ(p.inputs().size(), c.num_inputs);
      const std::vector<Value> out = apply(op, p.attrs, p.inputs());
      ASSERT_EQ(out.size(), 1u);
      std::vector<double> want(static_cast<size_t>(out[0].type.numel()), 0.0);
      for (const Value& in : p.inputs()) {
        ASSERT_EQ(in.type, out[0].type);
        for (size_t i = 0; i < want.size(); ++i) {
          want[i] += in.v[i];
        }
      }
      EXPECT_EQ(out[0].v, want);
    }
  }
  const TensorType type{DType::f32, {3, 2}};
  const Attrs attrs{{"type", to_string(type)}};
  EXPECT_EQ(ops::of(ops::Meaning::empty).infer(attrs, {}), std::vector{type});
}

/// Prints the ops without a property, so that no op is skipped silently. An op without a gradient
/// of its own is the backward of another one, works on integers, or runs outside the loss.
TEST(PartsOfTheList, PrintTheOpsThatATestLeavesOut) {
  struct Part {
    const char* what;
    bool (*is)(const Op&);
    size_t least;
  };
  for (const Part& part : {Part{"one precision only", has_compute_dtype, 20},
                           Part{"no accumulator", has_accumulators, 9},
                           Part{"no gradient of its own", has_gradient, 10}}) {
    const auto in = ops_that(part.is), out = ops_that(part.is, false);
    EXPECT_EQ(in.size() + out.size(), ops::all().size());
    EXPECT_GE(in.size(), part.least) << part.what << ": hardly any op is tested";
    std::cout << part.what << " (" << out.size() << " of " << ops::all().size() << "):";
    for (const Op* op : out) {
      std::cout << " " << op->name;
    }
    std::cout << "\n";
  }
}

}  // namespace
}  // namespace hocket::optest
