// SPDX-License-Identifier: Apache-2.0
// The steps of the loss, and the embedding, on runs of the vocabulary at sizes of several vectors,
// against sums in plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/kernel_util.h"

namespace hocket::test {
namespace {

/// Columns [begin, end) of a matrix.
Values columns(const Values& x, int64_t begin, int64_t end) {
  Values part{{x.type.dtype, {x.type.dims[0], end - begin}}, {}};
  for (int64_t r = 0; r < x.type.dims[0]; ++r) {
    const auto row = x.v.begin() + r * x.type.dims[1];
    part.v.insert(part.v.end(), row + begin, row + end);
  }
  return part;
}

void add(std::vector<double>& to, const std::vector<double>& part) {
  ASSERT_EQ(to.size(), part.size());
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] += part[i];
  }
}

struct LossCase {
  int64_t tokens, vocab;
  std::vector<int64_t> begins;  ///< of the runs; the last ends at vocab
};

/// The loss of logits, and its gradient.
struct Loss {
  std::vector<double> top, sum, lse, logit, mean, dz;
  double loss = 0;
};

Loss naive(const Values& z, const Values& targets, double scale) {
  Loss want;
  const int64_t v = z.type.dims[1];
  for (int64_t t = 0; t < z.type.dims[0]; ++t) {
    const double* row = z.v.data() + t * v;
    const double top = *std::max_element(row, row + v);
    double sum = 0, logits = 0;
    for (int64_t i = 0; i < v; ++i) {
      sum += std::exp(row[i] - top);
      logits += row[i];
    }
    const auto target = static_cast<int64_t>(targets[t]);
    want.top.push_back(top);
    want.sum.push_back(sum);
    want.lse.push_back(top + std::log(sum));
    want.logit.push_back(target < 0 ? 0 : row[target]);
    want.mean.push_back(target < 0 ? 0 : logits / static_cast<double>(v));
    want.loss += target < 0 ? 0 : scale * (want.lse.back() - row[target]);
    for (int64_t i = 0; i < v; ++i) {
      const double p = std::exp(row[i] - want.lse.back()) - (i == target ? 1 : 0);
      want.dz.push_back(target < 0 ? 0 : scale * p);
    }
  }
  return want;
}

TEST(VocabularyLossKernels, RunsOfTheVocabularyGiveTheWhole) {
  Random random(21);
  for (const LossCase& c : {LossCase{5, 3000, {0, 1000, 2048, 3000}},
                            LossCase{70, 37, {0, 0, 1, 36, 37, 37}}, LossCase{1, 1, {0, 1}}}) {
    Values z = random.normals({c.tokens, c.vocab}, 8), targets = zeros({c.tokens}, DType::i32);
    for (double& y : targets.v) {
      y = random.below(4) == 0 ? -100 : static_cast<double>(random.below(c.vocab));
    }
    targets.v[0] = static_cast<double>(c.vocab - 1);
    const double scale = 0.25;
    const Loss want = naive(z, targets, scale);
    const Attrs attrs{{"vocab", c.vocab}};
    const Values row = zeros({c.tokens}), scalar = fixed({scale});
    const Values wide = fixed(std::vector<double>(static_cast<size_t>(c.tokens)));
    for_both([&](DType dtype, double tolerance) {
      SCOPED_TRACE(testing::Message() << c.tokens << " tokens, vocabulary " << c.vocab);
      const auto per_run = [&](const auto& visit) {
        for (size_t i = 0; i + 1 < c.begins.size(); ++i) {
          visit(columns(z, c.begins[i], c.begins[i + 1]),
                std::vector<kernels::LetterOffset>{{'v', c.begins[i]}});
        }
      };
      Values top = row, sum = wide, logit = row, mean = wide;
      std::fill(top.v.begin(), top.v.end(), -INFINITY);
      per_run([&](const Values& part, auto) {
        const Values mine = run({"rowmax", {}, {part}, {row}}, dtype)[0];
        Values both[] = {top, mine};
        both[0].type.dtype = both[1].type.dtype = DType::f64;
        top = run({"maximum", {}, {both[0], both[1]}, {row}}, dtype)[0];
      });
      expect_close(top, want.top, tolerance, "rowmax");
      top.type.dtype = DType::f64;
      per_run([&](const Values& part, auto offsets) {
        add(sum.v, run({"sumexp", {}, {part, top}, {wide}}, dtype)[0].v);
        add(mean.v, run({"logit_mean", attrs, {part, targets}, {wide}}, dtype)[0].v);
        add(logit.v, run({.op = "pick",
                          .attrs = attrs,
                          .in = {part, targets},
                          .out = {row},
                          .piece_offsets = offsets},
                         dtype)[0]
                         .v);
      });
      expect_close(sum, want.sum, tolerance, "sumexp");
      expect_close(logit, want.logit, tolerance, "pick");
      expect_close(mean, want.mean, tolerance, "logit_mean");
      Values lse = run({"lse_of", {}, {top, sum}, {wide}}, dtype)[0];
      lse.fixed = true;
      expect_close(lse, want.lse, tolerance, "lse_of");
      expect_close(run({"lse", {}, {z}, {wide}}, dtype)[0], want.lse, tolerance, "lse");
      const Call loss{"nll", {}, {logit, lse, targets, scalar}, {fixed({0})}};
      expect_close(run(loss, dtype)[0], {want.loss}, tolerance, "nll");
      std::vector<double> dz(z.v.size());
      for (size_t i = 0; i + 1 < c.begins.size(); ++i) {
        const int64_t begin = c.begins[i], width = c.begins[i + 1] - begin;
        const Values part = columns(z, begin, begin + width);
        const Values mine = run({.op = "dlogits",
                                 .attrs = attrs,
                                 .in = {part, targets, lse, scalar},
                                 .out = {part},
                                 .piece_offsets = {{'v', begin}}},
                                dtype)[0];
        for (int64_t e = 0; e < c.tokens * width; ++e) {
          dz[static_cast<size_t>(e / width * c.vocab + begin + e % width)] = mine[e];
        }
      }
      expect_close(Values{z.type, dz}, want.dz, tolerance, "dlogits");
    });
  }
}

TEST(VocabularyLossKernels, RefuseTargetsOutsideOfTheVocabulary) {
  const Values z = zeros({2, 3}), row = zeros({2}), scalar = fixed({1}), wide = fixed({0, 0});
  const Attrs attrs{{"vocab", int64_t{6}}};
  for (double bad : {6.0, -1.0, -99.0}) {
    const Values targets = integers({5, bad});
    EXPECT_THROW(run({"pick", attrs, {z, targets}, {row}}, DType::f32), std::runtime_error);
    EXPECT_THROW(run({"dlogits", attrs, {z, targets, wide, scalar}, {z}}, DType::f32),
                 std::runtime_error);
  }
  const Values others = integers({5, -100});  // of another run, and ignored
  EXPECT_EQ(run({"pick", attrs, {z, others}, {row}}, DType::f32)[0].v, (std::vector<double>{0, 0}));
}

TEST(VocabularyLossKernels, EmbeddingRunsOnPartsOfItsRows) {
  Random random(22);
  const int64_t n = 300, vocab = 37, d = 40;
  const Values w = random.normals({vocab, d}), dy = random.normals({n, d});
  Values ids = zeros({n}, DType::i32);
  for (double& id : ids.v) {
    id = static_cast<double>(random.below(vocab));
  }
  const Attrs attrs{{"vocab", vocab}};
  const std::vector<int64_t> begins{0, 0, 11, 12, 37};
  for_both([&](DType dtype, double) {
    const auto x = run({"embedding", attrs, {ids, w}, {dy}}, dtype)[0].v;
    const auto dw = run({"embedding_dw", attrs, {ids, dy}, {w}}, dtype)[0].v;
    std::vector<double> x_sum(x.size()), dw_all;
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      Values part{{DType::f64, {begins[i + 1] - begins[i], d}}, {}};
      part.v.assign(w.v.begin() + begins[i] * d, w.v.begin() + begins[i + 1] * d);
      const std::vector<kernels::LetterOffset> begin{{'v', begins[i]}};
      add(x_sum, run({"embedding", attrs, {ids, part}, {dy}, 0, {}, begin}, dtype)[0].v);
      const auto mine = run({"embedding_dw", attrs, {ids, dy}, {part}, 0, {}, begin}, dtype)[0].v;
      dw_all.insert(dw_all.end(), mine.begin(), mine.end());
    }
    EXPECT_EQ(x_sum, x);
    EXPECT_EQ(dw_all, dw);
  });
}

}  // namespace
}  // namespace hocket::test
