// SPDX-License-Identifier: Apache-2.0
// Every legal layout of every op against one device: for each signature on an axis of two ranks the
// inputs are cut, the op runs on both parts and the outputs are put together again. Generated from
// the sample cases. Where a part needs indices that the cut takes away (ops::cut_support) the
// result must differ: else the op would need no such rule. How special values are cut:
//   routed rows  go with their token under split(1), with their expert under split(0);
//   counts, rows and routes that a chain makes are made again from the part's own tokens if a
//                signature of that op gives the wanted placement (a partial sum of counts is the
//                counts of the part's tokens), and are cut like any tensor otherwise (experts);
//   row_of       as an output counts rows of the part: it is compared as (expert, token) pairs.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "tests/ops/op_util.h"

namespace hocket::optest {
namespace {

class EveryLayout : public testing::TestWithParam<const Op*> {};

std::string layout_name_of(const testing::TestParamInfo<const Op*>& info) {
  return info.param->name;
}

bool divides(const std::vector<Placement>& on, std::span<const TensorType> types) {
  for (size_t i = 0; i < on.size(); ++i) {
    if (on[i].is_split() && types[i].dims[on[i].dim()] % 2 != 0) return false;
  }
  return true;
}

/// Makes the integer values of the chain again from local sources, where a signature of the chain's
/// op yields the placements that the inputs have. `local` holds the inputs as cut.
void remake(const Problem& p, const ops::AxisSignature& s, int part, const RowKeys& keys,
            std::vector<Value>& local) {
  for (const ops::ChainStep& step : p.sample->chain) {
    std::vector<TensorType> in, out;
    for (int i : step.in) {
      in.push_back(p.sample->types[i]);
    }
    const Op& op = ops::find(step.op);
    out = op.infer(step.attrs, in);
    auto placed = [&](int value) {
      return value >= 0 && static_cast<size_t>(value) < p.num_inputs;
    };
    for (const ops::AxisSignature& c : ops::signatures(op, in, out)) {
      bool fits = true, moved = false;
      for (size_t o = 0; o < step.out.size(); ++o) {
        if (!placed(step.out[o])) continue;
        fits &= c.out[o] == s.in[step.out[o]];
        moved |= !c.out[o].is_replicate();
      }
      for (size_t i = 0; i < step.in.size(); ++i) {
        if (placed(step.in[i])) {
          fits &= c.in[i] == s.in[step.in[i]];
        }
      }
      if (!fits || !moved || !divides(c.in, in)) continue;
      std::vector<Value> sources;
      for (size_t i = 0; i < step.in.size(); ++i) {
        sources.push_back(cut(p.values[step.in[i]], c.in[i], part, keys, 7 + i));
      }
      const std::vector<Value> made = apply(op, step.attrs, sources);
      for (size_t o = 0; o < step.out.size(); ++o) {
        if (placed(step.out[o]) && !graph::is_floating(made[o].type.dtype)) {
          local[step.out[o]] = made[o];
        }
      }
      break;
    }
  }
}

/// The rows' (expert, token) pairs in the order of row_of's entries, from counts and row_of alone.
std::vector<std::pair<int64_t, int64_t>> decode(const Value& counts, const Value& row_of,
                                                int64_t first_token) {
  std::vector<int64_t> expert_of_row;
  for (size_t e = 0; e < counts.v.size(); ++e) {
    expert_of_row.insert(expert_of_row.end(), static_cast<size_t>(counts.v[e]),
                         static_cast<int64_t>(e));
  }
  const int64_t k = row_of.type.dims[1];
  std::vector<std::pair<int64_t, int64_t>> pairs;
  std::set<int64_t> taken;
  for (size_t i = 0; i < row_of.v.size(); ++i) {
    const auto row = static_cast<int64_t>(row_of.v[i]);
    EXPECT_TRUE(row >= 0 && row < static_cast<int64_t>(expert_of_row.size())) << "row " << row;
    EXPECT_TRUE(taken.insert(row).second) << "row " << row << " is taken twice";
    if (row < 0 || row >= static_cast<int64_t>(expert_of_row.size())) return {};
    pairs.push_back({expert_of_row[row], first_token + static_cast<int64_t>(i) / k});
  }
  return pairs;
}

void compare(const Problem& p, const ops::AxisSignature& s, const std::vector<Value>& whole,
             const std::vector<std::vector<Value>>& parts, const RowKeys& keys) {
  for (size_t o = 0; o < whole.size(); ++o) {
    SCOPED_TRACE(testing::Message() << "output " << o << " as " << to_string(s.out[o]));
    if (p.op->name == "route_plan" && o == 1) {
      auto got = decode(parts[0][0], parts[0][1], 0);
      const int64_t offset = s.out[1].is_split() ? int64_t{parts[0][1].type.dims[0]} : 0;
      const auto second = decode(parts[1][0], parts[1][1], offset);
      if (offset > 0) {
        got.insert(got.end(), second.begin(), second.end());
      }
      EXPECT_EQ(got, decode(whole[0], whole[1], 0));
      continue;
    }
    const Value all = combine({parts[0][o], parts[1][o]}, s.out[o], whole[o].type, keys);
    if (graph::is_floating(whole[o].type.dtype)) {
      EXPECT_LE(relative_error(all.v, whole[o].v), 1e-12);
    } else {
      EXPECT_EQ(all.v, whole[o].v);
    }
  }
}

/// Returns where a part begins along positional letters, and its output sizes if one of them is
/// split by itself.
CallOptions where(const Problem& p, const ops::AxisSignature& s, int part) {
  CallOptions call;
  const std::vector<TensorType> in = p.in_types(), out = p.out_types();
  const ops::Letters letters = ops::letters(*p.op, in, out);
  if (s.tied) {
    std::set<char> seen;
    for (size_t i = 0; i < in.size() && part > 0; ++i) {
      if (!s.in[i].is_split()) continue;
      const auto dim = static_cast<size_t>(s.in[i].dim());
      const char letter = letters.in[i][dim];
      if (p.op->layout.is_positional(letter) && seen.insert(letter).second) {
        call.piece_offsets.push_back({letter, in[i].dims[dim] / 2});
      }
    }
    return call;
  }
  if (s.letter == 0 || !p.op->layout.is_positional(s.letter)) return call;
  for (size_t i = 0; i < in.size(); ++i) {
    const size_t dim = letters.in[i].find(s.letter);
    if (dim != std::string::npos && part > 0) {
      call.piece_offsets = {{s.letter, in[i].dims[dim] / 2}};
    }
  }
  for (size_t o = 0; o < out.size(); ++o) {
    const size_t dim = letters.out[o].find(s.letter);
    Value& like = call.out.emplace_back();
    like.type = out[o];
    if (dim != std::string::npos) {
      like.type.dims[dim] /= 2;
      if (part > 0) {
        call.piece_offsets = {{s.letter, like.type.dims[dim]}};
      }
    }
    like.v.resize(static_cast<size_t>(like.type.numel()));
  }
  return call;
}

TEST_P(EveryLayout, EqualsOneDevice) {
  const Op& op = *GetParam();
  // Signatures seen per alternative, by their text: each must divide in some sample.
  std::map<std::string, bool> ran;
  int num_cut = 0;
  ASSERT_TRUE(op.samples);
  for (const Sample& sample : op.samples()) {
    const Problem p = make(op, sample, 5);
    const RowKeys keys = row_keys(p);
    const std::vector<TensorType> in = p.in_types(), out = p.out_types();
    const std::vector<Value> whole = apply(op, p.attrs, p.inputs());
    std::string ranks;
    for (const TensorType& t : in) {
      ranks += std::to_string(t.dims.size()) + (t.routed() ? "r " : " ");
    }
    for (const ops::AxisSignature& s : ops::signatures(op, in, out)) {
      SCOPED_TRACE(p.name + ": " + to_string(s));
      bool& done = ran[ranks + ": " + to_string(s)];
      if (!divides(s.in, in) || !divides(s.out, out)) continue;
      std::vector<std::vector<Value>> parts;
      bool cuts = false, lacks = false;  // an op may need indices that are cut off
      for (int part : {0, 1}) {
        std::vector<Value> local;
        for (size_t i = 0; i < p.num_inputs; ++i) {
          local.push_back(cut(p.values[i], s.in[i], part, keys, 100 + i));
        }
        remake(p, s, part, keys, local);
        parts.emplace_back();
        std::string error;
        try {
          parts.back() = apply(op, p.attrs, local, where(p, s, part));
        } catch (const Error& e) {
          error = e.what();
        }
        lacks |= !error.empty();
        ASSERT_TRUE(error.empty() || s.tied) << error;
        if (!s.tied) continue;
        const ops::Letters letters = ops::letters(op, in, out);
        const auto size = [&](char letter) {
          int64_t found = 0;
          for (size_t i = 0; i < letters.in.size(); ++i) {
            const size_t dim = letters.in[i].find(letter);
            if (dim != std::string::npos) {
              found = local[i].type.dims[dim];
            }
          }
          return found;
        };
        cuts |= !ops::cut_support(op, p.attrs, s.letter, size).empty();
      }
      ASSERT_TRUE(cuts || !lacks);
      if (cuts) {
        ++num_cut;
        if (lacks) continue;
        const Value all = combine({parts[0][0], parts[1][0]}, s.out[0], whole[0].type, keys);
        EXPECT_GT(relative_error(all.v, whole[0].v), 1e-3);
        continue;
      }
      done = true;
      compare(p, s, whole, parts, keys);
    }
  }
  EXPECT_EQ(num_cut > 0, !op.layout.support.empty());
  for (const auto& [signature, done] : ran) {
    EXPECT_TRUE(done) << op.name << ": no sample can be cut as " << signature;
  }
  std::printf("%s: %zu signatures\n", op.name.c_str(), ran.size());
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryLayout, testing::ValuesIn(ops::all()), layout_name_of);

}  // namespace
}  // namespace hocket::optest
