// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Every op on pieces of its operands, generated from the sample cases. The indices of each letter
// that may be cut are dealt at random to two or three parts: in any order, perhaps none, and one
// run if the letter is positional. The op runs on each part. Results that have the letter are
// concatenated; others are combined by the letter's monoid. Two letters are cut at once, too.
// Inputs that are computed again for a part, not cut:
//   counts   are those of the part's rows;
//   row_of   is made by the sample's chain from the part's routes; as an output it is compared as
//            the experts that the rows belong to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <set>

#include "base/error.h"
#include "tests/compare_util.h"
#include "tests/ops/op_util.h"

namespace hocket::optest {
namespace {

using ops::Monoid;

std::string name_of(const testing::TestParamInfo<const Op*>& info) { return info.param->name; }

/// A sample with the facts of its notation.
struct Setting {
  explicit Setting(Problem made) : p(std::move(made)), keys(row_keys(p)) {
    in_types = p.in_types();
    out_types = p.out_types();
    letters = ops::letters(*p.op, in_types, out_types);
    const auto count = [&](const std::vector<std::string>& operands,
                           std::span<const TensorType> types) {
      for (size_t i = 0; i < types.size(); ++i) {
        for (size_t dim = 0; dim < operands[i].size(); ++dim) {
          const int64_t size = types[i].dims[dim];
          int64_t& known = sizes.emplace(operands[i][dim], size).first->second;
          known = std::min(known, size);
        }
      }
    };
    count(letters.in, in_types);
    count(letters.out, out_types);
  }

  Problem p;
  RowKeys keys;
  std::vector<TensorType> in_types, out_types;
  ops::Letters letters;
  Sizes sizes;
};

/// Deals out the indices of a letter.
std::vector<std::vector<int64_t>> deal(const Op& op, char letter, int64_t size, Rng& rng) {
  const auto parts = static_cast<size_t>(rng.between(2, 3));
  std::vector<int64_t> order(static_cast<size_t>(size));
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<int64_t>(i);
  }
  if (!op.layout.is_positional(letter)) {
    rng.shuffle(order);
  }
  std::vector<int64_t> ends{size};
  while (ends.size() < parts) {
    ends.push_back(rng.below(3) == 0 ? ends.back() : rng.between(0, size));
  }
  std::sort(ends.begin(), ends.end());
  std::vector<std::vector<int64_t>> dealt;
  int64_t begin = 0;
  for (int64_t end : ends) {
    dealt.emplace_back(order.begin() + begin, order.begin() + end);
    begin = end;
  }
  rng.shuffle(dealt);
  return dealt;
}

/// Computes the integer inputs that the sample's chain produces again, from the part's values.
void remake(const Setting& s, const Parts& part, std::vector<Value>& local) {
  for (const ops::ChainStep& step : s.p.sample->chain) {
    const Op& op = ops::find(step.op);
    std::vector<TensorType> in;
    for (int i : step.in) {
      in.push_back(s.p.sample->types[i]);
    }
    const ops::Letters names = ops::letters(op, in, op.infer(step.attrs, in));
    for (size_t o = 0; o < step.out.size(); ++o) {
      const auto to = static_cast<size_t>(step.out[o]);
      if (step.out[o] < 0 || to >= s.p.num_inputs || !s.letters.in_partial_of[to].empty() ||
          graph::is_floating(local[to].type.dtype)) {
        continue;
      }
      Parts there;
      Sizes sizes;
      for (size_t dim = 0; dim < names.out[o].size(); ++dim) {
        const char letter = s.letters.in[to][dim];
        sizes[names.out[o][dim]] = s.sizes.at(letter);
        if (part.count(letter)) {
          there[names.out[o][dim]] = part.at(letter);
        }
      }
      std::vector<Value> sources;
      for (size_t i = 0; i < step.in.size(); ++i) {
        sources.push_back(gather(s.p.values[step.in[i]], names.in[i], there, sizes, s.keys));
      }
      local[to] = apply(op, step.attrs, sources)[o];
    }
  }
}

/// Returns the number of rows per expert in a part.
Value counts_of(const Setting& s, size_t input, const Parts& part) {
  Value counts = gather(s.p.values[input], s.letters.in[input], part, s.sizes, s.keys);
  const char expert_letter = s.letters.in[input][0],
             token_letter = s.letters.in_partial_of[input][0];
  const auto tokens = part.find(token_letter);
  if (tokens == part.end()) return counts;
  for (size_t i = 0; i < counts.v.size(); ++i) {
    const int64_t expert =
        part.count(expert_letter) ? part.at(expert_letter)[i] : static_cast<int64_t>(i);
    counts.v[i] = static_cast<double>(
        std::count_if(tokens->second.begin(), tokens->second.end(), [&](int64_t token) {
          return std::binary_search(s.keys.begin(), s.keys.end(), std::pair{expert, token});
        }));
  }
  return counts;
}

/// Replaces row numbers in the outputs by the experts that the rows belong to.
void decode_rows(const Op& op, std::vector<Value>& out) {
  if (op.routing.row_of < 0) return;
  std::vector<double> expert_of_row;
  const Value& counts = out[static_cast<size_t>(op.routing.counts)];
  for (size_t e = 0; e < counts.v.size(); ++e) {
    expert_of_row.insert(expert_of_row.end(), static_cast<size_t>(counts.v[e]),
                         static_cast<double>(e));
  }
  std::set<double> taken;
  for (double& row : out[static_cast<size_t>(op.routing.row_of)].v) {
    EXPECT_TRUE(taken.insert(row).second) << "row " << row << " is taken twice";
    ASSERT_LT(row, static_cast<double>(expert_of_row.size()));
    row = expert_of_row[static_cast<size_t>(row)];
  }
}

std::vector<Value> run_part(const Setting& s, const Parts& part) {
  const Op& op = *s.p.op;
  std::vector<Value> local;
  for (size_t i = 0; i < s.p.num_inputs; ++i) {
    local.push_back(s.letters.in_partial_of[i].empty()
                        ? gather(s.p.values[i], s.letters.in[i], part, s.sizes, s.keys)
                        : counts_of(s, i, part));
  }
  remake(s, part, local);
  CallOptions call;
  for (size_t o = 0; o < s.out_types.size(); ++o) {
    Value& like = call.out.emplace_back();
    like.v.resize(
        places(s.out_types[o], s.letters.out[o], part, s.sizes, s.keys, &like.type).size());
  }
  for (const auto& [letter, indices] : part) {
    if (op.layout.is_positional(letter) && !indices.empty() && indices[0] != 0) {
      call.piece_offsets.push_back({letter, indices[0]});
    }
  }
  std::vector<Value> out = apply(op, s.p.attrs, local, call);
  decode_rows(op, out);
  return out;
}

/// Returns the monoid that combines parts of an output: that of the cut letters missing in it.
Monoid monoid_of(const Setting& s, size_t output, const Parts& part) {
  Monoid monoid = Monoid::sum;
  for (const auto& [letter, indices] : part) {
    if (s.letters.out[output].find(letter) != std::string::npos) continue;
    monoid = std::max(monoid, s.p.op->layout.monoid(letter));
  }
  return monoid;
}

/// Results put together so far. Starts as the identity.
class Total {
 public:
  Total(const Setting& s, const std::vector<Value>& whole, const Parts& part) : s_(s) {
    for (size_t o = 0; o < whole.size(); ++o) {
      monoid_.push_back(monoid_of(s, o, part));
      const bool low = monoid_[o] == Monoid::max || (monoid_[o] == Monoid::softmax && o == 1);
      sum_.push_back(whole[o]);
      std::fill(sum_[o].v.begin(), sum_[o].v.end(),
                low ? -std::numeric_limits<double>::infinity() : 0.0);
    }
  }

  void add(const std::vector<Value>& part, const Parts& indices) {
    std::vector<std::vector<size_t>> at;
    std::vector<Value> old;
    for (size_t o = 0; o < part.size(); ++o) {
      Value& before = old.emplace_back();
      at.push_back(
          places(s_.out_types[o], s_.letters.out[o], indices, s_.sizes, s_.keys, &before.type));
      ASSERT_EQ(at[o].size(), part[o].v.size()) << "output " << o;
      for (size_t place : at[o]) {
        before.v.push_back(sum_[o].v[place]);
      }
    }
    for (size_t o = 0; o < part.size(); ++o) {
      Value merged = old[o];
      switch (monoid_[o]) {
        case Monoid::sum:
          for (size_t i = 0; i < merged.v.size(); ++i) {
            merged.v[i] += part[o].v[i];
          }
          break;
        case Monoid::max:
          merged = apply(ops::of(ops::Meaning::merge_max), {}, std::vector{old[o], part[o]})[0];
          break;
        case Monoid::none:
          break;
        case Monoid::softmax:
          merged = apply(ops::of(ops::Meaning::merge_softmax), {},
                         std::vector{old[0], old[1], part[0], part[1]})[o];
          break;
      }
      for (size_t i = 0; i < at[o].size(); ++i) {
        sum_[o].v[at[o][i]] = merged.v[i];
      }
    }
  }

  const Value& operator[](size_t output) const { return sum_[output]; }

 private:
  const Setting& s_;
  std::vector<Monoid> monoid_;
  std::vector<Value> sum_;
};

/// Cuts some letters at random and compares the joined result with the whole. Returns the number of
/// parts without an index.
int compare(const Setting& s, const std::vector<Value>& whole, const std::string& letters,
            Rng& rng) {
  std::vector<Parts> parts{{}};
  std::string text;
  for (char letter : letters) {
    const auto dealt = deal(*s.p.op, letter, s.sizes.at(letter), rng);
    std::vector<Parts> finer;
    for (const Parts& part : parts) {
      for (const auto& indices : dealt) {
        finer.push_back(part);
        finer.back()[letter] = indices;
      }
    }
    parts = std::move(finer);
    text += fmt::format(" {}:", letter);
    for (const auto& indices : dealt) {
      text += "|";
      for (int64_t i : indices) {
        text += std::to_string(i) + " ";
      }
    }
  }
  SCOPED_TRACE(s.p.name + " cut" + text);
  Total total(s, whole, parts[0]);
  int empty = 0;
  for (const Parts& part : parts) {
    empty += std::any_of(part.begin(), part.end(), [](auto& cut) { return cut.second.empty(); });
    total.add(run_part(s, part), part);
    if (testing::Test::HasFatalFailure()) return empty;
  }
  for (size_t o = 0; o < whole.size(); ++o) {
    if (graph::is_floating(whole[o].type.dtype)) {
      EXPECT_LE(relative_error(total[o].v, whole[o].v), 1e-10) << "output " << o;
    } else {
      EXPECT_EQ(total[o].v, whole[o].v) << "output " << o;
    }
  }
  return empty;
}

class EveryPiece : public testing::TestWithParam<const Op*> {};

TEST_P(EveryPiece, EqualsItsPartOfTheWhole) {
  const Op& op = *GetParam();
  std::set<char> seen;
  int empty = 0;
  for (const Sample& sample : op.samples()) {
    const Setting s(make(op, sample, 5));
    std::vector<Value> whole = apply(op, s.p.attrs, s.p.inputs());
    decode_rows(op, whole);
    std::string can;
    for (char letter : std::string_view(op.layout.split)) {
      // Parts under Monoid::none are complete or nothing (SupportIsWhatAnOutputNeeds).
      if (op.layout.monoid(letter) == Monoid::none) {
        seen.insert(letter);
      } else if (s.sizes.count(letter)) {
        can += letter;
        seen.insert(letter);
      }
    }
    Rng rng(hash_name(s.p.name));
    for (size_t i = 0; i < can.size(); ++i) {
      for (int trial = 0; trial < 6; ++trial) {
        empty += compare(s, whole, can.substr(i, 1), rng);
      }
      for (size_t k = 0; k < i; ++k) {
        for (int trial = 0; trial < 2; ++trial) {
          empty += compare(s, whole, std::string{can[i], can[k]}, rng);
        }
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_EQ(seen.size(), std::string_view(op.layout.split).size());
  EXPECT_GT(empty, 0);
}

/// An op receives the offset of its piece only along the letters that it declares as positional.
TEST_P(EveryPiece, KnowsItsPositionalLetters) {
  const Op& op = *GetParam();
  const Setting s(make(op, op.samples()[0], 1));
  for (const auto& [letter, size] : s.sizes) {
    CallOptions call;
    call.piece_offsets = {{letter, 0}};
    EXPECT_NO_THROW(apply(op, s.p.attrs, s.p.inputs(), call)) << letter;
    if (op.layout.is_positional(letter)) continue;
    call.piece_offsets = {{letter, 1}};
    EXPECT_THROW(apply(op, s.p.attrs, s.p.inputs(), call), Error) << letter;
  }
}

std::vector<const Op*> ops_with_letters() {
  std::vector<const Op*> list;
  for (const Op* op : ops::all()) {
    if (*op->layout.split) {
      list.push_back(op);
    }
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryPiece, testing::ValuesIn(ops_with_letters()), name_of);

/// An elementwise op gives the same on a tensor and on its flattened elements. An op that declares
/// to keep zeros gives zeros for zeros.
TEST(Pieces, ElementwiseOpsActAlikeOnFlattenedTensors) {
  std::set<std::string> flat, zero;
  for (const Op* op : ops::all()) {
    for (const Sample& sample : op->samples()) {
      const Problem p = make(*op, sample, 7);
      const std::vector<TensorType> in = p.in_types();
      const std::vector<TensorType> out = op->infer(p.attrs, in);
      const ops::Letters letters = ops::letters(*op, in, out);
      for (const std::string& dims : letters.in) {
        if (!ops::acts_by_element(op->layout, letters, dims)) continue;
        const auto cut_anywhere = [](const TensorType& type) { return type.granule() == 1; };
        if (!std::all_of(in.begin(), in.end(), cut_anywhere) ||
            !std::all_of(out.begin(), out.end(), cut_anywhere)) {
          continue;
        }
        std::vector<Value> row(p.inputs().begin(), p.inputs().end());
        std::vector<Value> zeros = row;
        std::vector<TensorType> row_types;
        for (size_t i = 0; i < row.size(); ++i) {
          if (letters.in[i] == dims) {
            row[i].type.dims = {row[i].type.numel()};
            std::fill(zeros[i].v.begin(), zeros[i].v.end(), 0.0);
          }
          row_types.push_back(row[i].type);
        }
        if (op->layout.keeps_zero) {
          zero.insert(op->name);
          for (const Value& made : apply(*op, p.attrs, zeros)) {
            EXPECT_EQ(made.v, std::vector<double>(made.v.size(), 0.0)) << p.name;
          }
        }
        try {
          op->infer(p.attrs, row_types);
        } catch (const Error&) {
          continue;  // not of rank 1: no bucket is an operand of it
        }
        flat.insert(op->name);
        const std::vector<Value> want = apply(*op, p.attrs, p.inputs());
        const std::vector<Value> got = apply(*op, p.attrs, row);
        ASSERT_EQ(got.size(), want.size()) << p.name;
        for (size_t o = 0; o < want.size(); ++o) {
          EXPECT_EQ(got[o].v, want[o].v) << p.name << " output " << o;
        }
      }
    }
  }
  for (const char* name : {"adamw", "adamw_master", "add", "cast", "copy", "sumsq"}) {
    EXPECT_TRUE(flat.contains(name)) << name;
  }
  EXPECT_EQ(zero, (std::set<std::string>{"adamw", "adamw_master", "cast", "muon", "muon_master",
                                         "muon_momentum", "sgd", "sgd_master", "sumsq"}));
}

/// Declarations of an op about its letters, by themselves.
TEST(Pieces, RulesNameLettersThatExist) {
  for (const Op* op : ops::all()) {
    const std::string_view split = op->layout.split;
    for (char letter : std::string_view(op->layout.positional)) {
      if (std::string_view(op->layout.notation) == "*") continue;  // receives its begin only
      EXPECT_NE(split.find(letter), split.npos) << op->name;
    }
    for (const ops::Contraction& contraction : op->layout.contractions) {
      EXPECT_NE(split.find(contraction.letter), split.npos) << op->name;
    }
    for (const ops::Support& support : op->layout.support) {
      EXPECT_NE(split.find(support.letter), split.npos) << op->name;
      for (const Sample& sample : op->samples()) {
        const std::vector<TensorType> out = op->infer(sample.attrs, sample.inputs());
        const std::string has =
            ops::letters(*op, sample.inputs(), out).out[static_cast<size_t>(support.output)];
        EXPECT_NE(has.find(support.by), has.npos) << op->name;
        EXPECT_EQ(has.find(support.letter), has.npos) << op->name;
      }
    }
  }
}

/// A part with all indices that support() names gives the complete result. Without the first or the
/// last of them it does not.
TEST(Pieces, SupportIsWhatAnOutputNeeds) {
  int least = 0;
  for (const Op* op : ops::all()) {
    for (const ops::Support& support : op->layout.support) {
      for (const Sample& sample : op->samples()) {
        const Setting s(make(*op, sample, 3));
        const std::vector<Value> whole = apply(*op, s.p.attrs, s.p.inputs());
        const auto output = static_cast<size_t>(support.output);
        const int64_t size = s.sizes.at(support.by), all = s.sizes.at(support.letter);
        for (int64_t begin = 0; begin < size; ++begin) {
          for (int64_t length = 1; begin + length <= size; ++length) {
            // Tests every third run that touches neither end.
            const bool inside = begin > 0 && begin + length < size;
            if (inside && (begin + length) % 3 != 0 && !test::is_long()) continue;
            const graph::Run run{begin, length};
            const graph::Run needs = support.of(s.p.attrs, run, size, all);
            ASSERT_TRUE(needs.begin >= 0 && needs.begin + needs.length <= all);
            const auto result = [&](int64_t first, int64_t end) {
              Parts part{{support.letter, {}}};
              // Adds the indices of other letters that the same output needs.
              for (const ops::Support& other : op->layout.support) {
                if (other.output != support.output || other.by != support.by) continue;
                if (other.letter == support.letter) continue;
                const graph::Run has = other.of(s.p.attrs, run, size, s.sizes.at(other.letter));
                std::vector<int64_t>& indices = part[other.letter];
                for (int64_t i = 0; i < has.length; ++i) {
                  indices.push_back(has.begin + i);
                }
              }
              for (int64_t i = 0; i < length; ++i) {
                part[support.by].push_back(begin + i);
              }
              for (int64_t i = first; i < end; ++i) {
                part[support.letter].push_back(i);
              }
              return run_part(s, part)[output];
            };
            const Value want = [&] {
              Parts part;
              for (int64_t i = 0; i < length; ++i) {
                part[support.by].push_back(begin + i);
              }
              return gather(whole[output], s.letters.out[output], part, s.sizes, s.keys);
            }();
            const Value got = result(needs.begin, needs.begin + needs.length);
            EXPECT_LE(relative_error(got.v, want.v), 1e-10)
                << op->name << " " << sample.name << " " << begin << " " << length;
            if (begin == 0 || sample.fills.back().kind != ops::Fill::Kind::counting) continue;
            // One document: no named key can be left out, except for token 0 (its weight is always
            // 1).
            EXPECT_GT(relative_error(result(needs.begin + 1, needs.begin + needs.length).v, want.v),
                      1e-6);
            EXPECT_GT(relative_error(result(needs.begin, needs.begin + needs.length - 1).v, want.v),
                      1e-6);
            ++least;
          }
        }
      }
    }
  }
  EXPECT_GT(least, 100);
}

// ---- Definitions ----

/// Runs the graph of a definition.
std::vector<Value> run_definition(const ops::Decomposition& graph, std::span<const Value> in) {
  std::vector<Value> values(in.begin(), in.end());
  values.resize(graph.types.size());
  for (const ops::Decomposition::Step& step : graph.steps) {
    std::vector<Value> operands;
    for (int value : step.in) {
      operands.push_back(values[value]);
    }
    std::vector<Value> out = apply(*step.op, step.attrs, operands);
    for (size_t o = 0; o < out.size(); ++o) {
      values[step.out[o]] = std::move(out[o]);
    }
  }
  std::vector<Value> out;
  for (int value : graph.out) {
    out.push_back(values[value]);
  }
  return out;
}

class EveryDefinition : public testing::TestWithParam<const Op*> {};

TEST_P(EveryDefinition, EqualsTheKernel) {
  const Op& op = *GetParam();
  EXPECT_NE(op.defined, ops::Defined::no);
  int decomposed = 0;
  for (const Sample& sample : op.samples()) {
    for (uint64_t seed : {1, 2, 3}) {
      const Problem p = make(op, sample, seed);
      SCOPED_TRACE(p.name);
      const ops::Decomposition graph = ops::decompose(op, p.attrs, p.in_types());
      if (graph.out.empty()) continue;
      ++decomposed;
      const std::vector<Value> whole = apply(op, p.attrs, p.inputs());
      const std::vector<Value> steps = run_definition(graph, p.inputs());
      ASSERT_EQ(steps.size(), whole.size());
      for (size_t o = 0; o < whole.size(); ++o) {
        EXPECT_EQ(steps[o].type, whole[o].type) << "output " << o;
        EXPECT_LE(relative_error(steps[o].v, whole[o].v), 1e-12) << "output " << o;
      }
    }
  }
  EXPECT_GT(decomposed, 0);
}

/// The products of a definition are the products of the op.
TEST_P(EveryDefinition, HasTheSameProducts) {
  const Op& op = *GetParam();
  for (const Sample& sample : op.samples()) {
    const std::vector<TensorType> in(sample.inputs().begin(), sample.inputs().end());
    const std::vector<TensorType> out = op.infer(sample.attrs, in);
    const ops::Decomposition graph = ops::decompose(op, sample.attrs, in);
    if (graph.out.empty()) continue;
    const auto products = [](const Op& one, const Attrs& attrs, std::span<const TensorType> from,
                             std::span<const TensorType> to) {
      return one.cost_class == ops::CostClass::memory ? 0.0
                                                      : ops::cost_of(one, {attrs, from, to}).flops;
    };
    double flops = 0;
    for (const ops::Decomposition::Step& step : graph.steps) {
      std::vector<TensorType> from, to;
      for (int value : step.in) {
        from.push_back(graph.types[value]);
      }
      for (int value : step.out) {
        to.push_back(graph.types[value]);
      }
      flops += products(*step.op, step.attrs, from, to);
    }
    EXPECT_EQ(flops, products(op, sample.attrs, in, out)) << op.name << " " << sample.name;
  }
}

std::vector<const Op*> defined_ops() {
  std::vector<const Op*> list;
  for (const Op* op : ops::all()) {
    if (op->define) {
      list.push_back(op);
    }
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryDefinition, testing::ValuesIn(defined_ops()), name_of);

/// A made-up op of one vector, defined by another.
template <char other>
Op made(const char* name) {
  Op op;
  op.name = name;
  op.infer = [](const Attrs&, std::span<const TensorType> in) { return std::vector{in[0]}; };
  op.layout = {"a->a", "a"};
  op.samples = [] { return std::vector<Sample>{{"one", {}, {{DType::f64, {2}}}, {{}}, {}}}; };
  if constexpr (other != 0) {
    op.define = [](ops::Definition& graph, const Attrs&, std::span<const int> in) {
      return graph.apply(std::string(1, other), {}, {in[0]});
    };
    op.defined = ops::Defined::expands;
  }
  return op;
}

TEST(Definitions, MustNotBeCircular) {
  EXPECT_NO_THROW(ops::check_definitions({made<'b'>("a"), made<'c'>("b"), made<0>("c")}));
  EXPECT_THROW(ops::check_definitions({made<'b'>("a"), made<'c'>("b"), made<'a'>("c")}),
               std::logic_error);
  EXPECT_THROW(ops::check_definitions({made<'a'>("a")}), std::logic_error);
  EXPECT_THROW(ops::check_definitions({made<'b'>("a")}), std::logic_error);  // there is no b
}

}  // namespace
}  // namespace hocket::optest
