// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Matrix products: linear and its gradients, dense and grouped by expert, against naive sums.
#include <gtest/gtest.h>

#include "tests/kernels/kernel_util.h"

namespace hocket::test {
namespace {

/// sum_p a(i,p) b(p,j) (+ start) for all i < m, j < n.
template <typename A, typename B>
std::vector<double> product(int64_t m, int64_t n, int64_t k, A a, B b,
                            const std::vector<double>& start = {}) {
  std::vector<double> c(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double s = start.empty() ? 0 : start[i * n + j];
      for (int64_t p = 0; p < k; ++p) {
        s += a(i, p) * b(p, j);
      }
      c[i * n + j] = s;
    }
  }
  return c;
}

struct Shape {
  int64_t t, n, k;
};

TEST(LinearKernels, MatchNaiveSumsAtOddSizes) {
  Random random(1);
  for (Shape s : {Shape{1, 1, 1}, Shape{3, 5, 7}, Shape{14, 32, 16}, Shape{15, 33, 17},
                  Shape{29, 100, 513}, Shape{130, 70, 66}, Shape{1, 300, 1030}, Shape{460, 9, 40},
                  Shape{97, 270, 530}, Shape{33, 2100, 40}, Shape{4, 3, 0}, Shape{0, 3, 4}}) {
    Values x = random.normals({s.t, s.k}), w = random.normals({s.n, s.k}),
           dy = random.normals({s.t, s.n});
    for_both([&](DType dtype, double tolerance) {
      for (uint32_t add : {0u, 1u}) {
        SCOPED_TRACE(testing::Message() << s.t << "x" << s.n << "x" << s.k << " add " << add);
        Values y0 = random.normals({s.t, s.n}), dx0 = random.normals({s.t, s.k}),
               dw0 = random.normals({s.n, s.k});
        auto start = [&](const Values& v) { return add ? v.v : std::vector<double>{}; };
        expect_close(run({"linear", {}, {x, w}, {y0}, add}, dtype)[0],
                     product(
                         s.t, s.n, s.k, [&](auto i, auto p) { return x[i * s.k + p]; },
                         [&](auto p, auto j) { return w[j * s.k + p]; }, start(y0)),
                     tolerance, "y");
        expect_close(run({"linear_dx", {}, {dy, w}, {dx0}, add}, dtype)[0],
                     product(
                         s.t, s.k, s.n, [&](auto i, auto p) { return dy[i * s.n + p]; },
                         [&](auto p, auto j) { return w[p * s.k + j]; }, start(dx0)),
                     tolerance, "dx");
        expect_close(run({"linear_dw", {}, {dy, x}, {dw0}, add}, dtype)[0],
                     product(
                         s.n, s.k, s.t, [&](auto i, auto p) { return dy[p * s.n + i]; },
                         [&](auto p, auto j) { return x[p * s.k + j]; }, start(dw0)),
                     tolerance, "dw");
      }
    });
  }
}

TEST(LinearKernels, TakeHeadsAsOneWidth) {
  Random random(2);
  Values x = random.normals({6, 8}), w = random.normals({4, 3, 8}), flat = w;
  flat.type.dims = {12, 8};
  const auto a = run({"linear", {}, {x, w}, {zeros({6, 4, 3})}}, DType::f64)[0];
  const auto b = run({"linear", {}, {x, flat}, {zeros({6, 12})}}, DType::f64)[0];
  EXPECT_EQ(a.v, b.v);
  Values o = random.normals({6, 4, 3}), wo = random.normals({5, 4, 3});
  const auto y = run({"linear", {}, {o, wo}, {zeros({6, 5})}}, DType::f64)[0];
  expect_close(y,
               product(
                   6, 5, 12, [&](auto i, auto p) { return o[i * 12 + p]; },
                   [&](auto p, auto j) { return wo[j * 12 + p]; }),
               1e-12, "y");
}

TEST(LinearKernels, RowsDoNotDependOnTheirNumber) {
  // Sizes around those of a vector, of two, and of register tiles; the inner dimension is cut once.
  constexpr int64_t kRows = 75, kIn = 700, kOut = 100;
  Random random(3);
  const Values x = random.normals({kRows, kIn}), w = random.normals({kOut, kIn});
  for_both([&](DType dtype, double) {
    const auto all = run({"linear", {}, {x, w}, {zeros({kRows, kOut})}}, dtype)[0];
    for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 28, 31, 32, 33, 56, 57}) {
      Values part = x;
      part.type.dims[0] = rows;
      part.v.resize(static_cast<size_t>(rows * kIn));
      const auto few = run({"linear", {}, {part, w}, {zeros({rows, kOut})}}, dtype)[0];
      for (int64_t i = 0; i < rows * kOut; ++i) {
        ASSERT_EQ(few[i], all[i]) << rows << " rows, number " << i;
      }
    }
  });
}

struct Grouped {
  std::vector<double> counts;
  int64_t n, k;
};

TEST(LinearKernels, GroupedMatchOnePerExpert) {
  Random random(4);
  for (const Grouped& g :
       {Grouped{{3, 0, 5, 1}, 5, 7}, Grouped{{0, 0}, 3, 4}, Grouped{{17}, 33, 20},
        Grouped{{0, 120, 0, 1, 0}, 70, 40}, Grouped{{500, 3}, 40, 30}}) {
    const auto e = static_cast<int64_t>(g.counts.size());
    int64_t rows = 0;
    for (double c : g.counts) {
      rows += static_cast<int64_t>(c);
    }
    const int64_t tokens = std::max<int64_t>(rows, 1);
    Values counts = integers(g.counts, DType::i64);
    Values x = routed(random, {e, tokens, g.k}, 1, rows),
           dy = routed(random, {e, tokens, g.n}, 1, rows);
    Values w = random.normals({e, g.n, g.k}), dw0 = random.normals({e, g.n, g.k});
    std::vector<double> y, dx, dw, dw_add;
    int64_t r = 0;
    for (int64_t i = 0; i < e; ++i) {
      const auto c = static_cast<int64_t>(g.counts[i]);
      auto append = [](std::vector<double>& to, const std::vector<double>& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      auto xs = [&](auto t, auto p) { return x[(r + t) * g.k + p]; };
      auto ds = [&](auto t, auto p) { return dy[(r + t) * g.n + p]; };
      auto wt = [&](auto p, auto j) { return w[(i * g.n + p) * g.k + j]; };
      append(y, product(c, g.n, g.k, xs, [&](auto p, auto j) { return wt(j, p); }));
      append(dx, product(c, g.k, g.n, ds, wt));
      auto d = product(
          g.n, g.k, c, [&](auto a, auto p) { return ds(p, a); }, xs);
      append(dw, d);
      for (size_t j = 0; j < d.size(); ++j) {
        dw_add.push_back(dw0.v[dw_add.size()] + d[j]);
      }
      r += c;
    }
    for_both([&](DType dtype, double tolerance) {
      SCOPED_TRACE(testing::Message() << e << " experts, " << rows << " rows");
      expect_close(run({"grouped_linear", {}, {x, w, counts}, {dy}}, dtype)[0], y, tolerance, "y");
      expect_close(run({"grouped_linear_dx", {}, {dy, w, counts}, {x}}, dtype)[0], dx, tolerance,
                   "dx");
      expect_close(run({"grouped_linear_dw", {}, {dy, x, counts}, {dw0}}, dtype)[0], dw, tolerance,
                   "dw");
      expect_close(run({"grouped_linear_dw", {}, {dy, x, counts}, {dw0}, 1}, dtype)[0], dw_add,
                   tolerance, "dw accumulated");
    });
  }
}

}  // namespace
}  // namespace hocket::test
