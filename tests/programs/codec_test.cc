// SPDX-License-Identifier: Apache-2.0
// An all-reduce of compressed parts. Every rank encodes its own part, all codes are gathered, and
// every rank adds up the decoded parts. It decodes its own part, too, so that all ranks get equal
// results.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autodiff/autodiff.h"
#include "check/check.h"
#include "graph/names.h"
#include "tests/check/check_util.h"
#include "tests/programs/program_builder_util.h"

namespace hocket::test::codec_test {
namespace {

using graph::Attrs;

constexpr int64_t kTokens = 12, kRows = 6, kWidth = 4;
const Attrs kToF64{{"dtype", std::string("f64")}};

/// Form of a rank's own addend.
enum class Own { decoded, exact };

/// Returns a program for a weight gradient, reduced over ranks with different tokens through a
/// codec.
ProgramBuilder all_reduce(const std::string& through, int32_t ranks, Own own = Own::decoded) {
  ProgramBuilder w({{"dp", ranks}});
  const TensorId dy = w.input("dy", f64({kTokens, kRows})),
                 x = w.input("x", f64({kTokens, kWidth}));
  const TensorId g = w.apply("g", "linear_dw", {}, {dy, x})[0];
  w.result(g);
  const Layout tokens = w.split(0, {"dp"});
  const BufferId mine = w.step_buffer(f64({kRows, kWidth})), total = w.output_buffer(g);
  const BufferId decoded = w.step_buffer(w.type(mine));
  w.task("linear_dw", {}, {w.input_buffer(dy, tokens), w.input_buffer(x, tokens)}, {mine});
  std::vector<BufferId> codes;
  const Attrs back = through == "int8" ? kToF64 : Attrs{};
  if (through == "int8") {
    codes = {w.step_buffer({DType::i8, {kRows, kWidth}}), w.step_buffer({DType::f32, {kRows}})};
  } else {
    codes = {w.step_buffer(TensorType(w.type(mine)))};
  }
  w.task("encode_" + through, {}, {mine}, codes);
  if (own == Own::exact) {
    w.task("copy", {}, {mine}, {total});
  } else {
    w.task("decode_" + through, back, codes, {total});
  }
  for (int32_t hop = 1; hop < ranks; ++hop) {
    for (BufferId& part : codes) {
      const BufferId next = w.step_buffer(TensorType(w.type(part)));
      w.shift("dp", 1, part, next);
      part = next;
    }
    w.task("decode_" + through, back, codes, {decoded});
    w.task("add", {}, {total, decoded}, {total});
  }
  return w;
}

const std::vector<ProgramCase>& cases() {
  static const std::vector<ProgramCase> all = {
      {"all-reduce through a codec", [] { return all_reduce("identity", 2); }, {"codec"}},
      {"all-reduce through a codec, three ranks",
       [] { return all_reduce("identity", 3); },
       {"codec"}},
      {"all-reduce through a codec, own part exact",
       [] { return all_reduce("identity", 3, Own::exact); },
       {"codec"}},
  };
  return all;
}

TEST(Codecs, ProvenRunAndSimulated) { expect_proven_run_simulated(cases()); }
TEST(Codecs, MutantsAreRefusedOrEqual) { expect_mutants_refused_or_equal(cases()); }

TEST(Codecs, TheVerdictNamesWhatIsLost) {
  for (const auto& [codec, lost] : {std::pair{"identity", 0}, {"int8", 1}}) {
    ProgramBuilder w = all_reduce(codec, 3);
    w.finish();
    const check::Verdict verdict = check::check(w.program, w.graph);
    ASSERT_TRUE(verdict.ok()) << to_text(verdict);
    ASSERT_EQ(verdict.losses.size(), static_cast<size_t>(lost)) << to_text(verdict);
    if (lost == 0) continue;
    EXPECT_EQ(verdict.losses[0].buffer, "g");
    EXPECT_EQ(verdict.losses[0].codec, "int8");
    EXPECT_NE(verdict.losses[0].term.find("'g'"), std::string::npos) << verdict.losses[0].term;
    EXPECT_NE(to_text(verdict).find("g: ~int8 of "), std::string::npos) << to_text(verdict);
    EXPECT_NE(to_json(verdict).find("\"codec\": \"int8\""), std::string::npos);
  }
}

TEST(Codecs, Int8LosesLittle) {
  // Each rank's part is off by at most half a step of 1/127 of the row's greatest element; the sum
  // has three parts.
  ProgramBuilder w = all_reduce("int8", 3);
  w.finish();
  const Results got = run(w, w.program, 1);
  const Results want = run_alone(w, 1);
  EXPECT_NE(difference(got, want), "");  // something is lost
  const std::vector<double>& right = want.at("g").at(0).values;
  ASSERT_EQ(got.at("g").size(), 3u);
  double most = 0;
  for (double value : right) {
    most = std::max(most, std::abs(value));
  }
  for (const Copy& copy : got.at("g")) {
    for (size_t i = 0; i < right.size(); ++i) {
      EXPECT_NEAR(copy.values[i], right[i], 0.05 * most) << i;
      // Ranks add in another order: the same up to rounding.
      EXPECT_NEAR(copy.values[i], got.at("g")[0].values[i], 1e-12 * most) << i;
    }
  }
}

/// Finishes a program and returns the rules of the problems that the check reports.
std::string refused_by(ProgramBuilder& w, std::string* text = nullptr) {
  w.finish();
  const check::Verdict verdict = check::check(w.program, w.graph);
  if (text) {
    *text = to_text(verdict);
  }
  return verdict.ok() ? "" : verdict.problems[0].rule;
}

/// A parameter in place, encoded and decoded.
void lose(ProgramBuilder& w, BufferId param) {
  const TensorType type = w.type(param);
  const std::vector<BufferId> codes = {w.step_buffer({DType::i8, type.dims}),
                                       w.step_buffer({DType::f32, {type.dims[0]}})};
  w.task("encode_int8", {}, {param}, codes);
  w.task("decode_int8", kToF64, codes, {param});
}

/// A parameter on both ranks, which are classes of their own; those of `lossy` decode it.
ProgramBuilder by_class(const std::vector<int32_t>& lossy, const std::string& layout = "") {
  ProgramBuilder w({{"dp", 2}});
  const TensorId weight = w.param("W", f64({kRows, kWidth}));
  const TensorId x = w.input("x", f64({kWidth}));
  const TensorId y = w.apply("y", "add", {}, {x, x})[0];
  w.result(y);
  for (int32_t rank = 0; rank < 2; ++rank) {
    program::Box box;
    box[0] = {rank, 1};
    if (rank == 0) {
      w.current().box = box;
    } else {
      w.add_class(box);
    }
    const BufferId fed = w.input_buffer(x);
    w.task("add", {}, {fed, fed}, {w.output_buffer(y)});
    const BufferId param =
        w.persistent_buffer(weight, layout.empty() ? Layout{} : w.split(0, {layout}));
    if (std::find(lossy.begin(), lossy.end(), rank) != lossy.end()) {
      lose(w, param);
    }
  }
  return w;
}

TEST(Codecs, RanksOfDifferentClassesKeepTheSame) {
  for (const int32_t rank : {0, 1}) {
    std::string text;
    ProgramBuilder w = by_class({rank});
    EXPECT_EQ(refused_by(w, &text), "replicas-differ") << text;
    EXPECT_NE(text.find("keeps 'W'"), std::string::npos) << text;
    EXPECT_NE(text.find("element 0 of 24 is on rank 0 (dp 0), and on rank 1 (dp 1)"),
              std::string::npos)
        << text;
  }
  // All ranks decode every part, or each another part.
  ProgramBuilder all = by_class({0, 1}), parts = by_class({1}, "dp");
  EXPECT_EQ(refused_by(all), "");
  EXPECT_EQ(refused_by(parts), "");
}

/// A parameter in a bucket: every rank encodes its rows, all decode all of them, and `own` rows are
/// put back as they were.
ProgramBuilder in_bucket(Own own) {
  constexpr int64_t kOwn = kRows / 2;
  ProgramBuilder w({{"dp", 2}});
  const TensorId weight = w.param("W", f64({kRows, kWidth}));
  const TensorId x = w.input("x", f64({kWidth}));
  const TensorId y = w.apply("y", "add", {}, {x, x})[0];
  w.result(y);
  const BufferId fed = w.input_buffer(x);
  w.task("add", {}, {fed, fed}, {w.output_buffer(y)});
  const BufferId bucket =
      w.bucket(program::BufferKind::persistent, "b", kRows * kWidth, {{weight, 0}});
  const BufferId all = w.flat_view(bucket, {kRows, kWidth}, 0);
  const BufferId mine =
      w.flat_view(bucket, {kOwn, kWidth}, [](const At& at) { return at[0] * kOwn * kWidth; });
  const BufferId saved = w.step_buffer(f64({kOwn, kWidth})),
                 decoded = w.step_buffer(f64({kRows, kWidth}));
  const std::vector<BufferId> part = {w.step_buffer({DType::i8, {kOwn, kWidth}}),
                                      w.step_buffer({DType::f32, {kOwn}})};
  const std::vector<BufferId> whole = {w.step_buffer({DType::i8, {kRows, kWidth}}),
                                       w.step_buffer({DType::f32, {kRows}})};
  w.task("copy", {}, {mine}, {saved});
  w.task("encode_int8", {}, {saved}, part);
  for (size_t i = 0; i < part.size(); ++i) {
    w.collective("all_gather", {{"dim", int64_t{0}}}, {"dp"}, {part[i]}, {whole[i]});
  }
  w.task("decode_int8", kToF64, whole, {decoded});
  w.task("copy", {}, {decoded}, {all});
  if (own == Own::exact) {
    w.task("copy", {}, {saved}, {mine});
  }
  return w;
}

TEST(Codecs, RanksKeepTheSameInABucket) {
  std::string text;
  ProgramBuilder w = in_bucket(Own::exact), right = in_bucket(Own::decoded);
  EXPECT_EQ(refused_by(w, &text), "replicas-differ") << text;
  EXPECT_NE(text.find("element 0 of 24 is on rank 0 (dp 0), and on rank 1 (dp 1)"),
            std::string::npos)
      << text;
  EXPECT_EQ(refused_by(right, &text), "");
  EXPECT_NE(text.find("b: ~int8 of 'W'"), std::string::npos) << text;
}

/// A step that updates a parameter by its gradient. Every rank has its tokens' part of it.
struct Trained {
  ProgramBuilder w;
  TensorId weight;
  autodiff::OptimizerConfig config;
  TensorType type;
  BufferId mine;  ///< the rank's part of the gradient

  explicit Trained(std::vector<graph::Axis> axes) : w(axes) {
    const TensorId dy = w.input("dy", f64({kTokens, kRows}));
    const TensorId x = w.input("x", f64({kTokens, kWidth}));
    weight = w.param("W", f64({kRows, kWidth}));
    w.apply("y", "linear", {}, {x, weight});
    w.gradient(weight, w.apply("g", "linear_dw", {}, {dy, x}, graph::Phase::backward)[0]);
    autodiff::append_optimizer(w.graph, config);
    type = w.graph.tensor(weight).type;
    std::vector<std::string> names;
    for (const graph::Axis& axis : axes) {
      names.push_back(axis.name);
    }
    const Layout tokens = w.split(0, names);
    mine = w.step_buffer(type);
    w.task("linear_dw", {}, {w.input_buffer(dy, tokens), w.input_buffer(x, tokens)}, {mine});
  }
  std::vector<BufferId> codes() {
    return {w.step_buffer({DType::i8, type.dims}), w.step_buffer({DType::f32, {kRows}})};
  }
  std::vector<BufferId> encoded(BufferId from) {
    const std::vector<BufferId> to = codes();
    w.task("encode_int8", {}, {from}, to);
    return to;
  }
  BufferId decoded(const std::vector<BufferId>& from) {
    const BufferId to = w.step_buffer(type);
    w.task("decode_int8", kToF64, from, {to});
    return to;
  }
  /// Adds the codes of the rank `offset` before this one along the axis.
  BufferId with_peer(const std::vector<BufferId>& own, const std::string& axis, int32_t offset) {
    const std::vector<BufferId> came = codes();
    for (size_t i = 0; i < own.size(); ++i) {
      w.shift(axis, offset, own[i], came[i]);
    }
    const BufferId sum = w.step_buffer(type);
    w.task("add", {}, {decoded(own), decoded(came)}, {sum});
    return sum;
  }
  void update(BufferId gradient) {
    const graph::Node node = w.graph.nodes.back();
    const BufferId norm = w.step_buffer(f64({1})), coef = w.step_buffer(f64({1}));
    w.task("sumsq", {}, {gradient}, {norm});
    const TensorId of_all = w.graph.find(graph::names::kGradNorm);
    w.task("clip_coef", {{"max_norm", config.max_norm}}, {norm},
           {coef, w.output_buffer(of_all, {}, program::kNone)});
    std::vector<BufferId> in;
    for (TensorId id : node.in) {
      const graph::Tensor& tensor = w.graph.tensor(id);
      if (id == node.in[1] || id == node.in[4]) {
        in.push_back(id == node.in[1] ? gradient : coef);
      } else {
        in.push_back(tensor.kind == graph::TensorKind::input ? w.input_buffer(id)
                                                             : w.persistent_buffer(id));
      }
    }
    w.task("adamw", node.attrs, in, {in[0], in[2], in[3]});
  }
};

/// Codes of parts of a gradient, decoded and added up on both ranks, which are classes. Rank 1 also
/// has the exact sum, and its decoded codes. With `apart` it takes these.
ProgramBuilder by_parts(bool apart) {
  Trained t({{"dp", 2}});
  const BufferId total = t.with_peer(t.encoded(t.mine), "dp", 1);
  const BufferId exact = t.w.step_buffer(t.type), sum = t.w.step_buffer(t.type);
  t.w.shift("dp", 1, t.mine, exact);
  t.w.task("add", {}, {t.mine, exact}, {sum});
  const BufferId at_once = t.decoded(t.encoded(sum));
  t.update(total);
  check::test::split_class(t.w.program, 0, t.w.axis("dp"), 1);
  if (apart) {
    t.w.program.classes[1].tasks.back().in[1] = at_once;
  }
  return std::move(t.w);
}

/// Sums of two, and sums of two such sums, each through codes: with the rank `offset` before along
/// an axis, hop by hop.
ProgramBuilder doubled(const std::vector<graph::Axis>& axes,
                       const std::vector<std::pair<std::string, int32_t>>& hops) {
  Trained t(axes);
  BufferId sum = t.mine;
  for (const auto& [axis, offset] : hops) {
    sum = t.with_peer(t.encoded(sum), axis, offset);
  }
  t.update(sum);
  return std::move(t.w);
}

TEST(Codecs, CodecLossDependsOnTheAddendsEncodedTogether) {
  // Rank 0 adds the decoded g0 + g3 and g1 + g2, rank 1 g0 + g1 and g2 + g3: equal counts of other
  // pairs. Pairs with the same sum before and after lose the same.
  std::string text;
  ProgramBuilder ring = doubled({{"dp", 4}}, {{"dp", 1}, {"dp", 2}});
  EXPECT_EQ(refused_by(ring, &text), "replicas-differ") << text;
  EXPECT_NE(text.find("is on rank 0 (dp 0), and on rank 1 (dp 1)"), std::string::npos) << text;
  EXPECT_NE(text.find("each at once"), std::string::npos) << text;
  ProgramBuilder pairs = doubled({{"a", 2}, {"b", 2}}, {{"b", 1}, {"a", 1}});
  EXPECT_EQ(refused_by(pairs, &text), "") << text;
}

TEST(Codecs, LossOfPartsDiffersFromLossOfTheirSum) {
  std::string text;
  ProgramBuilder w = by_parts(true), right = by_parts(false);
  EXPECT_EQ(refused_by(right, &text), "") << text;
  EXPECT_EQ(refused_by(w, &text), "replicas-differ") << text;
  EXPECT_NE(text.find("of 1/2 of its addends at once"), std::string::npos) << text;
}

}  // namespace
}  // namespace hocket::test::codec_test
