// SPDX-License-Identifier: Apache-2.0
// Routing: router, route plan, dispatch, combine, balance loss, against plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/kernels/kernel_util.h"

namespace hocket::test {
namespace {

struct Case {
  int64_t t, e, k;
};
const Case kCases[] = {{1, 1, 1}, {6, 4, 2}, {5, 3, 3}, {200, 8, 2}, {9, 128, 8}, {70, 5, 1}};

/// Top-k of every row, ties to the lowest index.
std::vector<double> top_k(const std::vector<double>& p, Case c) {
  std::vector<double> ids;
  for (int64_t t = 0; t < c.t; ++t) {
    std::vector<int64_t> order(static_cast<size_t>(c.e));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return p[t * c.e + a] > p[t * c.e + b]; });
    for (int64_t j = 0; j < c.k; ++j) {
      ids.push_back(static_cast<double>(order[j]));
    }
  }
  return ids;
}

TEST(MoeKernels, RouterAndItsGradientEqualTheirFormulas) {
  Random random(21);
  for (Case c : kCases) {
    for (int64_t norm : {0, 1}) {
      for (int64_t with_psum : {0, 1}) {
        Values logits = random.normals({c.t, c.e}), dw = random.normals({c.t, c.k}),
               dpsum = random.normals({c.e});
        std::vector<double> p(logits.v.size()), w, psum(static_cast<size_t>(c.e)), dx(p.size());
        for (int64_t t = 0; t < c.t; ++t) {
          double sum = 0;
          for (int64_t i = 0; i < c.e; ++i) {
            sum += std::exp(logits[t * c.e + i]);
          }
          for (int64_t i = 0; i < c.e; ++i) {
            psum[i] += p[t * c.e + i] = std::exp(logits[t * c.e + i]) / sum;
          }
        }
        const auto ids = top_k(p, c);
        for (int64_t t = 0; t < c.t; ++t) {
          auto prob = [&](int64_t j) {
            return p[static_cast<size_t>(t * c.e) + static_cast<size_t>(ids[t * c.k + j])];
          };
          double total = 0;
          for (int64_t j = 0; j < c.k; ++j) {
            total += prob(j);
          }
          std::vector<double> dp(static_cast<size_t>(c.e));
          for (int64_t i = 0; i < c.e && with_psum; ++i) {
            dp[i] = dpsum[i];
          }
          for (int64_t j = 0; j < c.k; ++j) {
            w.push_back(norm ? prob(j) / total : prob(j));
            // d w_l / d p_j = (delta_jl total - p_l) / total^2 when normalised.
            double g = norm ? 0 : dw[t * c.k + j];
            for (int64_t l = 0; l < c.k && norm; ++l) {
              g += dw[t * c.k + l] * ((l == j) * total - prob(l)) / (total * total);
            }
            dp[ids[t * c.k + j]] += g;
          }
          for (int64_t i = 0; i < c.e; ++i) {
            for (int64_t l = 0; l < c.e; ++l) {
              dx[t * c.e + i] += dp[l] * p[t * c.e + l] * ((i == l) - p[t * c.e + i]);
            }
          }
        }
        for_both([&](DType dtype, double tolerance) {
          SCOPED_TRACE(testing::Message() << c.t << " tokens, " << c.k << " of " << c.e);
          Attrs attrs{{"top_k", c.k}, {"norm", norm}};
          Values id = zeros({c.t, c.k}, DType::i32);
          auto f = run({"router", attrs, {logits}, {dw, id, logits, dpsum}}, dtype);
          expect_close(f[0], w, tolerance, "w");
          EXPECT_EQ(f[1].v, ids);
          expect_close(f[2], p, tolerance, "probs");
          expect_close(f[3], psum, tolerance, "psum");
          attrs.set("has_dpsum", with_psum);
          id.v = ids;
          Values probs = logits;
          probs.v = p;
          std::vector<Values> in{dw, id, probs};
          if (with_psum) {
            in.push_back(dpsum);
          }
          expect_close(run({"router_bwd", attrs, in, {logits}}, dtype)[0], dx, 2 * tolerance,
                       "dlogits");
        });
      }
    }
  }
}

TEST(MoeKernels, TiesGoToTheLowestIndex) {
  Values logits = zeros({2, 5});
  logits[5 + 3] = logits[5 + 1] = 1;
  const auto f = run({"router",
                      {{"top_k", int64_t{3}}, {"norm", int64_t{1}}},
                      {logits},
                      {zeros({2, 3}), zeros({2, 3}, DType::i32), logits, zeros({5})}},
                     DType::f32);
  EXPECT_EQ(f[1].v, (std::vector<double>{0, 1, 2, 1, 3, 0}));
}

TEST(MoeKernels, DispatchCombineAndTheirGradientsEqualTheirFormulas) {
  Random random(22);
  for (Case c : kCases) {
    const int64_t d = 9, rows = c.t * c.k;
    Values ids = zeros({c.t, c.k}, DType::i32);
    for (int64_t t = 0; t < c.t; ++t) {
      for (int64_t j = 0; j < c.k;) {
        const double e = static_cast<double>(random.below(c.e));
        bool seen = false;
        for (int64_t l = 0; l < j; ++l) {
          seen |= ids[t * c.k + l] == e;
        }
        if (!seen) {
          ids[t * c.k + j++] = e;
        }
      }
    }
    Values counts = zeros({c.e}, DType::i64), row_of = zeros({c.t, c.k}, DType::i32);
    for (double e : ids.v) {
      ++counts[static_cast<int64_t>(e)];
    }
    int64_t at = 0;
    for (int64_t e = 0; e < c.e; ++e) {
      for (int64_t i = 0; i < rows; ++i) {
        if (ids[i] == static_cast<double>(e)) {
          row_of[i] = static_cast<double>(at++);
        }
      }
    }
    const auto k32 = static_cast<int32_t>(c.k);
    Values x = random.normals({c.t, d}), w = random.normals({c.t, c.k}),
           dx0 = random.normals({c.t, d});
    Values ys = routed(random, {c.e, c.t, d}, k32, rows);
    std::vector<double> xs(ys.v.size()), dx(x.v.size()), y(x.v.size()), dys(ys.v.size()),
        dw(w.v.size());
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t f = 0; f < d; ++f) {
        const auto r = static_cast<size_t>(static_cast<int64_t>(row_of[i]) * d + f);
        const auto t = static_cast<size_t>(i / c.k * d + f);
        xs[r] = x.v[t];
        dx[t] += ys.v[r];
        y[t] += w[i] * ys.v[r];
        dys[r] = w[i] * x.v[t];
        dw[i] += x.v[t] * ys.v[r];
      }
    }
    for_both([&](DType dtype, double tolerance) {
      SCOPED_TRACE(testing::Message() << c.t << " tokens, " << c.k << " of " << c.e);
      const Attrs attrs{{"num_experts", c.e}};
      auto plan = run({"route_plan", attrs, {ids}, {counts, row_of}}, dtype);
      EXPECT_EQ(plan[0].v, counts.v);
      EXPECT_EQ(plan[1].v, row_of.v);
      EXPECT_EQ(run({"dispatch", attrs, {x, row_of}, {ys}}, dtype)[0].v, xs);
      expect_close(run({"dispatch_bwd", {}, {ys, row_of}, {x}}, dtype)[0], dx, tolerance, "dx");
      auto sum = dx;
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] += dx0.v[i];
      }
      expect_close(run({"dispatch_bwd", {}, {ys, row_of}, {dx0}, 1}, dtype)[0], sum, tolerance,
                   "dx accumulated");
      expect_close(run({"combine", {}, {ys, w, row_of}, {x}}, dtype)[0], y, tolerance, "y");
      auto b = run({"combine_bwd", {}, {x, ys, w, row_of}, {ys, w}}, dtype);
      expect_close(b[0], dys, tolerance, "dys");
      expect_close(b[1], dw, tolerance, "dw");
    });
  }
  EXPECT_THROW(run({"route_plan",
                    {{"num_experts", int64_t{2}}},
                    {integers({0, 2})},
                    {zeros({2}, DType::i64), zeros({2, 1}, DType::i32)}},
                   DType::f32),
               std::runtime_error);
}

TEST(MoeKernels, BalanceLossAndItsGradientEqualTheirFormulas) {
  Values psum = integers({1.5, 2, 0.25}), counts = integers({3, 0, 5}, DType::i64);
  psum.type.dtype = DType::f64;
  const Attrs attrs{{"coef", 0.01}, {"top_k", int64_t{2}}};
  const double want = 0.01 * 3 * (3 / 8.0 * 1.5 / 4 + 5 / 8.0 * 0.25 / 4);
  for_both([&](DType dtype, double tolerance) {
    EXPECT_NEAR(run({"balance_loss", attrs, {psum, counts}, {fixed({0})}}, dtype)[0][0], want,
                1e-12);
    EXPECT_NEAR(run({"balance_loss", attrs, {psum, counts}, {fixed({2})}, 1}, dtype)[0][0],
                want + 2, 1e-12);
    expect_close(run({"balance_loss_bwd", attrs, {counts}, {psum}}, dtype)[0],
                 {0.01 * 3 * 3 / 8 / 4, 0, 0.01 * 3 * 5 / 8 / 4}, tolerance, "dpsum");
  });
}

}  // namespace
}  // namespace hocket::test
