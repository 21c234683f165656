// SPDX-License-Identifier: Apache-2.0
// Activations, gated activations, caps, biases and LayerNorm: against plain formulas.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numbers>
#include <string>
#include <vector>

#include "tests/kernels/kernel_util.h"

namespace hocket::test {
namespace {

double normal_below(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }

struct Function {
  const char* kind;
  std::function<double(double)> value, slope;
};

const std::vector<Function>& functions() {
  static const auto gelu_tanh = [](double x) {
    return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
  };
  static const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  static const std::vector<Function> list = {
      {"gelu", [](double x) { return x * normal_below(x); },
       [](double x) {
         return normal_below(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
       }},
      {"gelu_tanh", gelu_tanh,
       [](double x) {
         const double c = std::sqrt(2 / std::numbers::pi);
         const double t = std::tanh(c * (x + 0.044715 * x * x * x));
         return (1 + t) / 2 + x / 2 * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
       }},
      {"silu", [](double x) { return x * sigmoid(x); },
       [](double x) { return sigmoid(x) * (1 + x * (1 - sigmoid(x))); }},
      {"relu", [](double x) { return std::max(x, 0.0); },
       [](double x) { return x > 0 ? 1.0 : 0.0; }},
      {"relu2", [](double x) { return x > 0 ? x * x : 0; },
       [](double x) { return x > 0 ? 2 * x : 0; }}};
  return list;
}

const Function& function(const std::string& kind) {
  for (const Function& one : functions()) {
    if (one.kind == kind) return one;
  }
  throw std::out_of_range(kind);
}

/// Numbers around 0, and far from it.
Values numbers(Random& random, int64_t rows, int64_t columns) {
  Values x = random.normals({rows, columns}, 3);
  const std::vector<double> special = {0, -95, 95, 1e-6, -1e-6, 0.65, -0.65, 1, -1, 4, -4, 12, -12};
  for (size_t i = 0; i < std::min(special.size(), x.v.size()); ++i) {
    x.v[i] = special[i];
  }
  return x;
}

TEST(ActivationKernels, EqualTheirFormulas) {
  Random random(31);
  for (const Function& f : functions()) {
    for (const auto& [rows, columns] : {std::pair{1, 1}, {5, 37}, {70, 1000}}) {
      const Values x = numbers(random, rows, columns), dy = random.normals({rows, columns});
      std::vector<double> y, dx;
      for (size_t i = 0; i < x.v.size(); ++i) {
        y.push_back(f.value(x.v[i]));
        dx.push_back(dy.v[i] * f.slope(x.v[i]));
      }
      const Attrs attrs{{"kind", std::string(f.kind)}};
      for_both([&](DType dtype, double tolerance) {
        SCOPED_TRACE(f.kind);
        expect_close(run({"activation", attrs, {x}, {x}}, dtype)[0], y, tolerance, "y");
        expect_close(run({"activation_bwd", attrs, {dy, x}, {x}}, dtype)[0], dx, tolerance, "dx");
      });
    }
    // Routed rows: those that exist.
    const int64_t n = 11, width = 5;
    const Values x = routed(random, {3, 9, width}, 2, n), dy = routed(random, {3, 9, width}, 2, n);
    const Values counts = integers({4, 0, 7}, DType::i64);
    std::vector<double> y, dx;
    for (size_t i = 0; i < x.v.size(); ++i) {
      y.push_back(f.value(x.v[i]));
      dx.push_back(dy.v[i] * f.slope(x.v[i]));
    }
    const Attrs attrs{{"kind", std::string(f.kind)}};
    for_both([&](DType dtype, double tolerance) {
      expect_close(run({"activation", attrs, {x, counts}, {x}}, dtype)[0], y, tolerance, "y");
      expect_close(run({"activation_bwd", attrs, {dy, x, counts}, {x}}, dtype)[0], dx, tolerance,
                   "dx");
    });
  }
}

TEST(ActivationKernels, TanhAndErfAreExactToF32) {
  Values x = zeros({40001});
  for (size_t i = 0; i < x.v.size(); ++i) {
    x.v[i] = static_cast<float>((static_cast<double>(i) - 20000) * 5e-4);
  }
  const auto expect_near = [&](const Call& call, double allowed, auto&& value) {
    for_both([&](DType dtype, double) {
      if (dtype != DType::f32) return;
      const Values y = run(call, dtype)[0];
      for (size_t i = 0; i < x.v.size(); ++i) {
        const double want = value(x.v[i]);
        ASSERT_LE(std::abs(y.v[i] - want), allowed * std::max(1.0, std::abs(x.v[i])))
            << call.op << " of " << x.v[i] << " is " << y.v[i];
      }
    });
  };
  expect_near({"softcap", {{"cap", 1.0}}, {x}, {x}}, 1.5e-7, [](double v) { return std::tanh(v); });
  Values rows = x;
  rows.type.dims = {1, 40001};
  expect_near({"activation", {{"kind", std::string("gelu")}}, {rows}, {rows}}, 1.5e-7,
              [](double v) { return v * normal_below(v); });
  // Near 0 tanh is as exact as its argument.
  Values tiny = zeros({64});
  for (size_t i = 0; i < tiny.v.size(); ++i) {
    tiny.v[i] = static_cast<float>(std::pow(0.7, static_cast<double>(i)) * (i % 2 ? 1 : -1));
  }
  for_both([&](DType dtype, double) {
    if (dtype != DType::f32) return;
    const Values y = run({"softcap", {{"cap", 1.0}}, {tiny}, {tiny}}, dtype)[0];
    for (size_t i = 0; i < tiny.v.size(); ++i) {
      EXPECT_NEAR(y.v[i] / std::tanh(tiny.v[i]), 1, 3e-7) << tiny.v[i];
    }
  });
}

TEST(ActivationKernels, GegluAndItsGradientEqualTheirFormulas) {
  Random random(32);
  for (const std::string approximate : {"none", "tanh"}) {
    const std::string name = approximate == "none" ? "gelu" : "gelu_tanh";
    const Function& f = function(name);
    const Attrs attrs{{"approximate", approximate}};
    for (int64_t width : {1, 5, 16, 37, 130}) {
      for (bool is_routed : {false, true}) {
        const int64_t n = 23, rows = is_routed ? 11 : n;
        const Values gu = is_routed ? routed(random, {3, n, 2, width}, 2, rows)
                                    : random.normals({n, 2, width}, 4);
        const Values dh =
            is_routed ? routed(random, {3, n, width}, 2, rows) : random.normals({n, width});
        std::vector<double> h, dgu(gu.v.size());
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t i = 0; i < width; ++i) {
            const int64_t gate = 2 * r * width + i, up = gate + width;
            h.push_back(f.value(gu[gate]) * gu[up]);
            dgu[static_cast<size_t>(gate)] = dh[r * width + i] * gu[up] * f.slope(gu[gate]);
            dgu[static_cast<size_t>(up)] = dh[r * width + i] * f.value(gu[gate]);
          }
        }
        std::vector<Values> in{gu}, in_bwd{dh, gu};
        if (is_routed) {
          in.push_back(integers({4, 0, 7}, DType::i64));
          in_bwd.push_back(in[1]);
        }
        for_both([&](DType dtype, double tolerance) {
          SCOPED_TRACE(approximate + " " + std::to_string(width));
          expect_close(run({"geglu", attrs, in, {dh}}, dtype)[0], h, tolerance, "h");
          expect_close(run({"geglu_bwd", attrs, in_bwd, {gu}}, dtype)[0], dgu, tolerance, "dgu");
        });
      }
    }
  }
}

TEST(ActivationKernels, ScaleAndSoftcapEqualTheirFormulas) {
  Random random(33);
  const Values x = random.normals({33, 1001}, 30), dy = random.normals({33, 1001});
  std::vector<double> scaled, capped, d_capped;
  for (size_t i = 0; i < x.v.size(); ++i) {
    const double t = std::tanh(x.v[i] / 20);
    scaled.push_back(x.v[i] * -0.3);
    capped.push_back(20 * t);
    d_capped.push_back(dy.v[i] * (1 - t * t));
  }
  const Attrs cap{{"cap", 20.0}};
  for_both([&](DType dtype, double tolerance) {
    expect_close(run({"scale", {{"factor", -0.3}}, {x}, {x}}, dtype)[0], scaled, tolerance, "y");
    expect_close(run({"softcap", cap, {x}, {x}}, dtype)[0], capped, tolerance, "capped");
    expect_close(run({"softcap_bwd", cap, {dy, x}, {x}}, dtype)[0], d_capped, tolerance, "dx");
  });
}

TEST(BiasKernels, AddToEveryRowAndSumIt) {
  Random random(34);
  for (const auto& [rows, heads, width] :
       {std::tuple{1, 1, 1}, {7, 1, 300}, {300, 2, 40}, {129, 1, 1027}}) {
    const graph::Dims dims = heads > 1 ? graph::Dims{rows, heads, width} : graph::Dims{rows, width};
    const graph::Dims of_bias(dims.begin() + 1, dims.end());
    const Values x = random.normals(dims), b = random.normals(of_bias),
                 before = random.normals(of_bias);
    std::vector<double> y, db(b.v.size()), added = before.v;
    for (size_t i = 0; i < x.v.size(); ++i) {
      y.push_back(x.v[i] + b.v[i % b.v.size()]);
      db[i % b.v.size()] += x.v[i];
      added[i % b.v.size()] += x.v[i];
    }
    for_both([&](DType dtype, double tolerance) {
      expect_close(run({"bias_add", {}, {x, b}, {x}}, dtype)[0], y, tolerance, "y");
      expect_close(run({"bias_add_db", {}, {x}, {b}}, dtype)[0], db, tolerance, "db");
      expect_close(run({"bias_add_db", {}, {x}, {before}, 1}, dtype)[0], added, tolerance,
                   "db accumulated");
    });
  }
}

TEST(BiasKernels, AddTheBiasOfEachRowsExpert) {
  Random random(35);
  const std::vector<double> counts = {70, 0, 7, 130};
  for (int64_t width : {3, 300}) {
    const Values x = routed(random, {4, 120, width}, 2, 207), b = random.normals({4, width});
    std::vector<double> y, db(b.v.size());
    int64_t row = 0;
    for (int64_t e = 0; e < 4; ++e) {
      for (double left = counts[static_cast<size_t>(e)]; left > 0; --left, ++row) {
        for (int64_t i = 0; i < width; ++i) {
          y.push_back(x[row * width + i] + b[e * width + i]);
          db[static_cast<size_t>(e * width + i)] += x[row * width + i];
        }
      }
    }
    const Values per_expert = integers(counts, DType::i64);
    for_both([&](DType dtype, double tolerance) {
      expect_close(run({"bias_add", {}, {x, b, per_expert}, {x}}, dtype)[0], y, tolerance, "y");
      expect_close(run({"bias_add_db", {}, {x, per_expert}, {b}}, dtype)[0], db, tolerance, "db");
    });
  }
}

TEST(NormKernels, LayerNormAndItsGradientsEqualTheirFormulas) {
  Random random(36);
  for (const graph::Dims& dims :
       {graph::Dims{1, 3}, {5, 7}, {130, 33}, {70, 3, 16}, {4, 600}, {5000, 2}}) {
    const int64_t d = dims.back();
    Values x = random.normals(dims, 2);
    for (double& v : x.v) {
      v += 5;
    }
    const Values w = random.normals({d}), b = random.normals({d}), dy = random.normals(dims);
    const Values dx0 = random.normals(dims), dw0 = random.normals({d}), db0 = random.normals({d});
    const auto rows = static_cast<int64_t>(x.v.size()) / d;
    Values mean = zeros(graph::Dims(dims.begin(), dims.end() - 1)), rstd = mean;
    std::vector<double> y, dx, dw(static_cast<size_t>(d)), db(static_cast<size_t>(d));
    const double eps = 1e-2, n = static_cast<double>(d);
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0, squares = 0, g_sum = 0, dot = 0;
      for (int64_t i = 0; i < d; ++i) {
        sum += x[r * d + i];
      }
      const double m = mean[r] = sum / n;
      for (int64_t i = 0; i < d; ++i) {
        squares += (x[r * d + i] - m) * (x[r * d + i] - m);
      }
      const double s = rstd[r] = 1 / std::sqrt(squares / n + eps);
      for (int64_t i = 0; i < d; ++i) {
        g_sum += dy[r * d + i] * w[i];
        dot += dy[r * d + i] * w[i] * (x[r * d + i] - m) * s;
      }
      for (int64_t i = 0; i < d; ++i) {
        const double xhat = (x[r * d + i] - m) * s;
        y.push_back(xhat * w[i] + b[i]);
        dx.push_back(s * (dy[r * d + i] * w[i] - g_sum / n - xhat * dot / n));
        dw[static_cast<size_t>(i)] += dy[r * d + i] * xhat;
        db[static_cast<size_t>(i)] += dy[r * d + i];
      }
    }
    for_both([&](DType dtype, double tolerance) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << d);
      const auto f = run({"layer_norm", {{"eps", eps}}, {x, w, b}, {x, mean, rstd}}, dtype);
      expect_close(f[0], y, tolerance, "y");
      expect_close(f[1], mean.v, tolerance, "mean");
      expect_close(f[2], rstd.v, tolerance, "rstd");
      const std::vector<Values> in{dy, x, w, mean, rstd};
      const auto g = run({"layer_norm_bwd", {}, in, {x, w, b}}, dtype);
      expect_close(g[0], dx, tolerance, "dx");
      expect_close(g[1], dw, 4 * tolerance, "dw");
      expect_close(g[2], db, 4 * tolerance, "db");
      const auto c = run({"layer_norm_bwd", {}, in, {dx0, dw0, db0}, 7}, dtype);
      const auto sum_of = [](std::vector<double> a, const Values& v) {
        for (size_t i = 0; i < a.size(); ++i) {
          a[i] += v.v[i];
        }
        return a;
      };
      expect_close(c[0], sum_of(dx, dx0), tolerance, "dx accumulated");
      expect_close(c[1], sum_of(dw, dw0), 4 * tolerance, "dw accumulated");
      expect_close(c[2], sum_of(db, db0), 4 * tolerance, "db accumulated");
    });
  }
}

/// Rows of two dims are rows of their product; an offset is added to the weights.
TEST(NormKernels, RmsNormMayRunOverHeadsAndHaveAnOffset) {
  Random random(37);
  const int64_t tokens = 70, heads = 3, d = 20, row = heads * d;
  const Values x = random.normals({tokens, heads, d}), dy = random.normals({tokens, heads, d}),
               g = random.normals({heads, d});
  const auto flat = [](Values v, graph::Dims dims) {
    v.type.dims = std::move(dims);
    return v;
  };
  Values one_more = g;
  for (double& v : one_more.v) {
    v += 1;
  }
  for_both([&](DType dtype, double tolerance) {
    const auto want = run({"rms_norm",
                           {{"eps", 1e-6}},
                           {flat(x, {tokens, row}), flat(one_more, {row})},
                           {flat(x, {tokens, row}), zeros({tokens})}},
                          dtype);
    const Attrs attrs{{"eps", 1e-6}, {"dims", int64_t{2}}, {"offset", 1.0}};
    const auto got = run({"rms_norm", attrs, {x, g}, {x, zeros({tokens})}}, dtype);
    expect_close(got[0], want[0].v, tolerance, "y");
    expect_close(got[1], want[1].v, tolerance, "rstd");
    Values rstd = want[1];
    rstd.type = zeros({tokens}).type;
    const auto bwd =
        run({"rms_norm_bwd",
             {},
             {flat(dy, {tokens, row}), flat(x, {tokens, row}), flat(one_more, {row}), rstd},
             {flat(x, {tokens, row}), flat(g, {row})}},
            dtype);
    const Attrs attrs_bwd{{"dims", int64_t{2}}, {"offset", 1.0}};
    const auto mine = run({"rms_norm_bwd", attrs_bwd, {dy, x, g, rstd}, {x, g}}, dtype);
    expect_close(mine[0], bwd[0].v, tolerance, "dx");
    expect_close(mine[1], bwd[1].v, tolerance, "dg");
  });
}

}  // namespace
}  // namespace hocket::test
