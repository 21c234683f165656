// SPDX-License-Identifier: Apache-2.0
// Embedding, norm, rotary embedding, SwiGLU, the loss head, the optimizer: against plain formulas.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "kernels/backend.h"
#include "ops/rope_frequencies.h"
#include "tests/kernels/kernel_util.h"

namespace hocket::test {
namespace {

TEST(DenseKernels, EmbeddingAndItsGradientEqualTheirFormulas) {
  Random random(11);
  for (int64_t d : {1, 7, 40, 130}) {
    const int64_t n = 300, vocab = 37;
    Values ids = zeros({n}, DType::i32), w = random.normals({vocab, d}),
           dy = random.normals({n, d}), start = random.normals({vocab, d});
    for (double& x : ids.v) {
      x = static_cast<double>(random.below(vocab - 3));
    }
    std::vector<double> x, dw(w.v.size()), added = start.v;
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t i = 0; i < d; ++i) {
        const auto at = static_cast<size_t>(static_cast<int64_t>(ids[t]) * d + i);
        x.push_back(w.v[at]);
        dw[at] += dy[t * d + i], added[at] += dy[t * d + i];
      }
    }
    for_both([&](DType dtype, double tolerance) {
      const Attrs attrs{{"vocab", vocab}};
      EXPECT_EQ(run({"embedding", attrs, {ids, w}, {dy}}, dtype)[0].v, x);
      expect_close(run({"embedding_dw", attrs, {ids, dy}, {w}}, dtype)[0], dw, tolerance, "dw");
      expect_close(run({"embedding_dw", attrs, {ids, dy}, {start}, 1}, dtype)[0], added, tolerance,
                   "dw accumulated");
    });
  }
  for (double bad : {-1.0, 5.0}) {
    EXPECT_THROW(run({"embedding",
                      {{"vocab", int64_t{5}}},
                      {integers({0, bad}), random.normals({5, 2})},
                      {zeros({2, 2})}},
                     DType::f32),
                 std::runtime_error);
  }
}

TEST(DenseKernels, PaddedEmbeddingHasZerosForNegativeTokens) {
  const Attrs attrs{{"vocab", int64_t{3}}, {"padded", int64_t{1}}};
  const Values ids = integers({1, -1, 2, -7});
  Values w = zeros({3, 2}), dy = zeros({4, 2});
  w.v = {1, 2, 3, 4, 5, 6};
  dy.v = {1, 1, 9, 9, 2, 3, 9, 9};
  EXPECT_EQ(run({"embedding", attrs, {ids, w}, {dy}}, DType::f32)[0].v,
            (std::vector<double>{3, 4, 0, 0, 5, 6, 0, 0}));
  EXPECT_EQ(run({"embedding_dw", attrs, {ids, dy}, {w}}, DType::f32)[0].v,
            (std::vector<double>{0, 0, 1, 1, 2, 3}));
}

TEST(DenseKernels, DropoutKeepsByTheNumberOfAnElement) {
  Random random(17);
  const int64_t tokens = 60, width = 37;
  const Values x = random.normals({tokens, width});
  Values numbers = zeros({tokens}, DType::i64);
  for (double& number : numbers.v) {
    number = static_cast<double>(random.below(int64_t{1} << 40));
  }
  for (const double p : {0.0, 0.1, 0.5}) {
    const Attrs attrs{{"p", p}, {"seed", int64_t{5}}, {"stream", int64_t{3}}, {"width", width}};
    std::vector<double> want;
    int64_t kept = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t c = 0; c < width; ++c) {
        const auto number = static_cast<uint64_t>(numbers[t]) * width + static_cast<uint64_t>(c);
        const bool keeps = random_block(5, 3, number / 4)[number % 4] * 0x1p-32 >= p;
        want.push_back(keeps ? x[t * width + c] / (1 - p) : 0);
        kept += keeps ? 1 : 0;
      }
    }
    EXPECT_NEAR(static_cast<double>(kept), (1 - p) * tokens * width, 120);
    for_both([&](DType dtype, double tolerance) {
      expect_close(run({"dropout", attrs, {x, numbers}, {x}}, dtype)[0], want, tolerance, "all");
      // The columns from 5 on.
      Values part = zeros({tokens, width - 5});
      std::vector<double> of_part;
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t c = 5; c < width; ++c) {
          part[t * (width - 5) + c - 5] = x[t * width + c];
          of_part.push_back(want[static_cast<size_t>(t * width + c)]);
        }
      }
      const Call call{.op = "dropout",
                      .attrs = attrs,
                      .in = {part, numbers},
                      .out = {part},
                      .piece_offsets = {{'d', 5}}};
      expect_close(run(call, dtype)[0], of_part, tolerance, "a part");
    });
  }
}

TEST(DenseKernels, RmsNormAndItsGradientEqualTheirFormulas) {
  Random random(12);
  for (graph::Dims dims :
       {graph::Dims{1, 1}, {5, 7}, {130, 33}, {70, 3, 16}, {4, 600}, {5000, 2}}) {
    const int64_t d = dims.back();
    Values x = random.normals(dims), g = random.normals({d}), dy = random.normals(dims),
           dx0 = random.normals(dims), dg0 = random.normals({d});
    const auto rows = static_cast<int64_t>(x.v.size()) / d;
    Values rstd = zeros(dims.size() == 3 ? graph::Dims{dims[0], dims[1]} : graph::Dims{rows});
    std::vector<double> y(x.v.size()), dx(x.v.size()), dg(static_cast<size_t>(d));
    const double eps = 1e-3;
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0, dot = 0;
      for (int64_t i = 0; i < d; ++i) {
        sum += x[r * d + i] * x[r * d + i];
      }
      const double s = rstd[r] = 1 / std::sqrt(sum / static_cast<double>(d) + eps);
      for (int64_t i = 0; i < d; ++i) {
        dot += dy[r * d + i] * g[i] * x[r * d + i] * s;
      }
      for (int64_t i = 0; i < d; ++i) {
        const auto at = static_cast<size_t>(r * d + i);
        y[at] = x.v[at] * s * g[i];
        dx[at] = s * (dy.v[at] * g[i] - x.v[at] * s * dot / static_cast<double>(d));
        dg[i] += dy.v[at] * x.v[at] * s;
      }
    }
    for_both([&](DType dtype, double tolerance) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << d);
      auto f = run({"rms_norm", {{"eps", eps}}, {x, g}, {x, rstd}}, dtype);
      expect_close(f[0], y, tolerance, "y");
      expect_close(f[1], rstd.v, tolerance, "rstd");
      auto b = run({"rms_norm_bwd", {}, {dy, x, g, rstd}, {x, g}}, dtype);
      expect_close(b[0], dx, tolerance, "dx");
      expect_close(b[1], dg, 4 * tolerance, "dg");
      auto c = run({"rms_norm_bwd", {}, {dy, x, g, rstd}, {dx0, dg0}, 3}, dtype);
      auto add = [](std::vector<double> a, const Values& v) {
        for (size_t i = 0; i < a.size(); ++i) {
          a[i] += v.v[i];
        }
        return a;
      };
      expect_close(c[0], add(dx, dx0), tolerance, "dx accumulated");
      expect_close(c[1], add(dg, dg0), 4 * tolerance, "dg accumulated");
    });
  }
}

TEST(DenseKernels, RopeTurnsHalves) {
  Random random(13);
  const double theta = 10000;
  auto frequency = [&](const Attrs& a, double f) {
    const std::string kind = a.s("scaling");
    if (kind == "linear") return f / 4;
    if (kind == "llama3") {
      const double wave = 2 * std::numbers::pi / f;
      if (wave > 64 / 1.0) return f / 8;
      if (wave < 64 / 4.0) return f;
      const double s = (64 / wave - 1) / (4.0 - 1.0);
      return (1 - s) * f / 8 + s * f;
    }
    return f;
  };
  for (const char* kind : {"default", "linear", "llama3"}) {
    for (bool far : {false, true}) {
      for (int64_t inverse : {0, 1}) {
        Attrs attrs{{"theta", theta}, {"inverse", inverse}, {"scaling", std::string(kind)}};
        attrs.set("factor", std::string(kind) == "linear" ? 4.0 : 8.0);
        attrs.set("low_freq_factor", 1.0), attrs.set("high_freq_factor", 4.0);
        attrs.set("original_max_position", 64.0);
        const int64_t n = 90, h = 3, d = 38;
        Values x = random.normals({n, h, d}), pos = random.positions(n, 80);
        for (double& p : pos.v) {
          p += far ? 5000 : 0;
        }
        std::vector<double> y(x.v.size());
        for (int64_t t = 0; t < n; ++t) {
          for (int64_t a = 0; a < h; ++a) {
            for (int64_t i = 0; i < d / 2; ++i) {
              const double f = frequency(attrs, std::pow(theta, -2.0 * i / static_cast<double>(d)));
              const double c = std::cos(pos[t] * f), s = (inverse ? -1 : 1) * std::sin(pos[t] * f);
              const int64_t at = (t * h + a) * d + i;
              y[at] = x[at] * c - x[at + d / 2] * s;
              y[at + d / 2] = x[at + d / 2] * c + x[at] * s;
            }
          }
        }
        for_both([&](DType dtype, double tolerance) {
          SCOPED_TRACE(testing::Message() << kind << " far " << far << " inverse " << inverse);
          expect_close(run({"rope", attrs, {x, pos}, {x}}, dtype)[0], y, tolerance, "y");
        });
      }
    }
  }
}

/// The first dims of a head turn, with the frequencies and the factor of every scaling.
TEST(DenseKernels, RopeTurnsOnlyTheFirstDimsOfAHead) {
  Random random(18);
  const int64_t n = 90, h = 3, d = 38;
  const Attrs yarn{
      {"scaling", std::string("yarn")}, {"factor", 4.0}, {"original_max_position", 64.0}};
  Attrs longrope{{"scaling", std::string("longrope")}, {"attention_factor", 1.25}};
  std::string factors = "1";
  for (int i = 1; i < 10; ++i) {
    factors += " " + std::to_string(1 + i);
  }
  longrope.set("factors", factors);
  for (Attrs attrs : {Attrs{}, yarn, longrope}) {
    attrs.set("theta", 10000.0);
    attrs.set("dims", int64_t{20});
    std::vector<double> frequencies(10);
    const double factor = ops::rope_frequencies(attrs, frequencies);
    EXPECT_EQ(factor != 1, attrs.has("scaling"));
    for (const int64_t inverse : {0, 1}) {
      for (const double begin : {0.0, 5000.0}) {
        attrs.set("inverse", inverse);
        const Values x = random.normals({n, h, d});
        Values pos = random.positions(n, 80);
        for (double& p : pos.v) {
          p += begin;
        }
        std::vector<double> y = x.v;
        for (int64_t at = 0; at < n * h * d; at += d) {
          for (int64_t i = 0; i < 10; ++i) {
            const double a = pos[at / d / h] * frequencies[static_cast<size_t>(i)];
            const double c = factor * std::cos(a), s = factor * std::sin(inverse ? -a : a);
            y[static_cast<size_t>(at + i)] = x[at + i] * c - x[at + 10 + i] * s;
            y[static_cast<size_t>(at + 10 + i)] = x[at + 10 + i] * c + x[at + i] * s;
          }
        }
        for_both([&](DType dtype, double tolerance) {
          SCOPED_TRACE(graph::to_string(attrs));
          expect_close(run({"rope", attrs, {x, pos}, {x}}, dtype)[0], y, tolerance, "y");
        });
      }
    }
  }
}

TEST(DenseKernels, SwigluAndItsGradientEqualTheirFormulas) {
  Random random(14);
  for (int64_t f : {1, 5, 16, 37, 130}) {
    const int64_t n = 23, rows = 11;
    for (bool is_routed : {false, true}) {
      const int64_t m = is_routed ? rows : n;
      Values gu = is_routed ? routed(random, {3, n, 2, f}, 2, rows) : random.normals({n, 2, f}, 4);
      Values dh = is_routed ? routed(random, {3, n, f}, 2, rows) : random.normals({n, f});
      gu[0] = 95, gu[gu.type.row_size() > 0 && is_routed ? 2 * f - 1 : f] = -95;
      std::vector<double> h(static_cast<size_t>(m * f)), dgu(static_cast<size_t>(2 * m * f));
      for (int64_t r = 0; r < m; ++r) {
        for (int64_t i = 0; i < f; ++i) {
          const double g = gu[r * 2 * f + i], u = gu[r * 2 * f + f + i], d = dh[r * f + i];
          const double s = 1 / (1 + std::exp(-g));
          h[r * f + i] = g * s * u;
          dgu[r * 2 * f + i] = d * u * s * (1 + g * (1 - s));
          dgu[r * 2 * f + f + i] = d * g * s;
        }
      }
      std::vector<Values> in{gu}, in_bwd{dh, gu};
      if (is_routed) {
        in.push_back(integers({4, 0, 7}, DType::i64));
        in_bwd.push_back(in[1]);
      }
      for_both([&](DType dtype, double tolerance) {
        expect_close(run({"swiglu", {}, in, {dh}}, dtype)[0], h, tolerance, "h");
        expect_close(run({"swiglu_bwd", {}, in_bwd, {gu}}, dtype)[0], dgu, tolerance, "dgu");
      });
    }
  }
}

TEST(DenseKernels, LinearCrossEntropyAndItsGradientsEqualTheirFormulas) {
  Random random(15);
  struct Case {
    int64_t t, d, v;
    double softcap = 0;
  };
  for (Case c : {Case{1, 1, 2}, Case{7, 5, 11}, Case{40, 12, 50}, Case{70, 9, 1500},
                 Case{600, 4, 33}, Case{1, 1, 2, 1}, Case{70, 9, 1500, 2}, Case{600, 4, 33, 30}}) {
    Values h = random.normals({c.t, c.d}), w = random.normals({c.v, c.d}),
           dw0 = random.normals({c.v, c.d});
    Values targets = zeros({c.t}, DType::i32);
    for (double& x : targets.v) {
      x = random.below(4) == 0 ? -100.0 : static_cast<double>(random.below(c.v));
    }
    const double scale = 0.125;
    double loss = 0;
    std::vector<double> dh(h.v.size()), dw(w.v.size());
    for (int64_t t = 0; t < c.t; ++t) {
      if (targets[t] < 0) continue;
      std::vector<double> p(static_cast<size_t>(c.v)), slope(p.size(), 1.0);
      double top = -1e300, sum = 0;
      for (int64_t j = 0; j < c.v; ++j) {
        for (int64_t i = 0; i < c.d; ++i) {
          p[j] += h[t * c.d + i] * w[j * c.d + i];
        }
        if (c.softcap > 0) {
          const double tanh = std::tanh(p[j] / c.softcap);
          p[j] = c.softcap * tanh;
          slope[j] = 1 - tanh * tanh;
        }
        top = std::max(top, p[j]);
      }
      const auto target = static_cast<int64_t>(targets[t]);
      const double logit = p[target];
      for (double& x : p) {
        sum += x = std::exp(x - top);
      }
      loss += scale * (top + std::log(sum) - logit);
      for (int64_t j = 0; j < c.v; ++j) {
        const double g = scale * (p[j] / sum - (j == target)) * slope[j];
        for (int64_t i = 0; i < c.d; ++i) {
          dh[t * c.d + i] += g * w[j * c.d + i];
          dw[j * c.d + i] += g * h[t * c.d + i];
        }
      }
    }
    for_both([&](DType dtype, double tolerance) {
      SCOPED_TRACE(testing::Message()
                   << c.t << " tokens, vocabulary " << c.v << ", softcap " << c.softcap);
      Attrs attrs{{"grad", int64_t{1}}};
      if (c.softcap > 0) {
        attrs.set("softcap", c.softcap);
      }
      const std::vector<Values> in{h, w, targets, fixed({scale})};
      auto r = run({"linear_cross_entropy", attrs, in, {fixed({0}), h, w}}, dtype);
      expect_close(r[0], {loss}, tolerance, "loss");
      expect_close(r[1], dh, tolerance, "dh");
      expect_close(r[2], dw, tolerance, "dw");
      r = run({"linear_cross_entropy", attrs, in, {fixed({3}), h, dw0}, 5}, dtype);
      expect_close(r[0], {loss + 3}, tolerance, "loss accumulated");
      auto sum = dw;
      for (size_t i = 0; i < sum.size(); ++i) {
        sum[i] += dw0.v[i];
      }
      expect_close(r[2], sum, tolerance, "dw accumulated");
      attrs.set("grad", int64_t{0});
      r = run({"linear_cross_entropy", attrs, in, {fixed({0})}}, dtype);
      expect_close(r[0], {loss}, tolerance, "loss alone");
    });
  }
}

TEST(DenseKernels, OptimizerStepEqualsItsFormula) {
  Random random(16);
  const int64_t n = 40000;
  Values p = random.normals({n}), g = random.normals({n}), m = random.normals({n}, 0.1),
         v = random.normals({n}, 0.1);
  for (double& x : v.v) {
    x = std::abs(x);
  }
  const double lr = 1e-2, b1 = 0.9, b2 = 0.95, eps = 1e-8, decay = 0.1, c1 = 1 - std::pow(b1, 3),
               c2 = 1 - std::pow(b2, 3), coef = 0.5;
  std::vector<double> p1, m1, v1;
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double d = coef * g[i];
    sum += g[i] * g[i];
    m1.push_back(b1 * m[i] + (1 - b1) * d);
    v1.push_back(b2 * v[i] + (1 - b2) * d * d);
    p1.push_back(p[i] * (1 - lr * decay) -
                 lr / c1 * m1.back() / (std::sqrt(v1.back()) / std::sqrt(c2) + eps));
  }
  for_both([&](DType dtype, double tolerance) {
    auto r = run({.op = "adamw",
                  .attrs = {{"beta1", b1}, {"beta2", b2}, {"eps", eps}, {"weight_decay", decay}},
                  .in = {p, g, m, v, fixed({coef}), fixed({lr, c1, c2})},
                  .out = {p, m, v},
                  .inplace = {{0, 0}, {2, 1}, {3, 2}}},
                 dtype);
    expect_close(r[0], p1, tolerance, "p");
    expect_close(r[1], m1, tolerance, "m");
    expect_close(r[2], v1, tolerance, "v");
    expect_close(run({"sumsq", {}, {g}, {fixed({0})}}, dtype)[0], {sum}, 1e-12, "sumsq");
    auto c =
        run({"clip_coef", {{"max_norm", 2.0}}, {fixed({9}), fixed({16})}, {fixed({0}), fixed({0})}},
            dtype);
    EXPECT_DOUBLE_EQ(c[0][0], 2 / (5 + 1e-6));
    EXPECT_DOUBLE_EQ(c[1][0], 5);
    for (double most : {0.0, 6.0}) {
      EXPECT_EQ(run({"clip_coef", {{"max_norm", most}}, {fixed({25})}, {fixed({0}), fixed({0})}},
                    dtype)[0][0],
                1);
    }
    // A step with a gradient norm that is not finite, or above the limit, changes no bit.
    const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
    for (const double sum_of_squares : {nan, infinity, 26.0}) {
      const double skip = run({"clip_coef",
                               {{"max_norm", 2.0}, {"skip_above", 5.0}},
                               {fixed({sum_of_squares})},
                               {fixed({0}), fixed({0})}},
                              dtype)[0][0];
      EXPECT_TRUE(std::isnan(skip)) << sum_of_squares;
      auto kept =
          run({.op = "adamw",
               .attrs = {{"beta1", b1}, {"beta2", b2}, {"eps", eps}, {"weight_decay", decay}},
               .in = {p, g, m, v, fixed({skip}), fixed({lr, c1, c2})},
               .out = {p, m, v},
               .inplace = {{0, 0}, {2, 1}, {3, 2}}},
              dtype);
      auto copied = run({"copy", {}, {p}, {g}}, dtype)[0].v;
      EXPECT_EQ(kept[0].v, copied);
      EXPECT_EQ(kept[1].v, run({"copy", {}, {m}, {g}}, dtype)[0].v);
      EXPECT_EQ(kept[2].v, run({"copy", {}, {v}, {g}}, dtype)[0].v);
    }
    EXPECT_EQ(run({"clip_coef",
                   {{"max_norm", 0.0}, {"skip_above", 5.0}},
                   {fixed({25})},
                   {fixed({0}), fixed({0})}},
                  dtype)[0][0],
              1);
    EXPECT_EQ(run({"zero", {}, {}, {p}}, dtype)[0].v, std::vector<double>(p.v.size()));
    EXPECT_EQ(run({"copy", {}, {p}, {g}}, dtype)[0].v, p.v);
    auto total = p.v;
    for (size_t i = 0; i < total.size(); ++i) {
      total[i] += g.v[i];
    }
    expect_close(run({"add", {}, {p, g}, {m}}, dtype)[0], total, tolerance, "sum");
  });
  EXPECT_EQ(run({"copy", {}, {integers({1, 2, 3}, DType::i64)}, {integers({0, 0, 0}, DType::i64)}},
                DType::f32)[0]
                .v,
            (std::vector<double>{1, 2, 3}));
}

TEST(DenseKernels, AreFoundByOpDeviceAndOperandTypes) {
  const kernels::Backend& cpu = *kernels::cpu_backend();
  const std::vector<TensorType> f32{{DType::f32, {2, 2}}}, i32{{DType::i32, {2}}},
      bf16{{DType::bf16, {2, 2}}};
  const auto two = [](const std::vector<TensorType>& one) { return std::vector{one[0], one[0]}; };
  const std::vector<TensorType> f32s = two(f32), i32s = two(i32), bf16s = two(bf16);
  using kernels::Device;
  EXPECT_NE(cpu.find("linear", Device::cpu, {f32s, f32}), nullptr);
  EXPECT_EQ(cpu.find("linear", Device::cpu, {f32s, bf16}), nullptr);
  EXPECT_NE(cpu.find("zero", Device::cpu, {{}, i32}), nullptr);
  EXPECT_NE(cpu.find("copy", Device::cpu, {bf16, bf16}), nullptr);
  EXPECT_EQ(cpu.find("linear", Device::cpu, {i32s, i32}), nullptr);
  EXPECT_NE(cpu.find("linear", Device::cpu, {bf16s, bf16}), nullptr);
  EXPECT_EQ(cpu.find("linear", Device::cpu, {bf16s, f32}), nullptr);
  EXPECT_EQ(cpu.find("linear", Device::cuda, {f32s, f32}), nullptr);
  EXPECT_EQ(cpu.find("nothing", Device::cpu, {f32s, f32}), nullptr);
}

// A kernel refuses strides and begins that it does not support, before it touches an operand.
TEST(DenseKernels, RefuseStridesAndBegins) {
  float x[4] = {1, 2, 3, 4}, y[4] = {9, 9, 9, 9};
  const TensorType type{DType::f32, {2, 2}};
  const kernels::KernelFn add = kernels::cpu_backend()->find(
      "add", kernels::Device::cpu, {std::vector{type, type}, std::vector{type}});
  const int64_t strides[] = {1, 2};
  const kernels::TensorRef plain{x, &type}, turned{x, &type, strides}, out{y, &type};
  const graph::Attrs attrs;
  const auto refusal = [&](const kernels::TensorRef& second,
                           std::span<const kernels::LetterOffset> offsets) {
    const kernels::TensorRef in[] = {plain, second};
    try {
      add({.attrs = &attrs, .in = in, .out = std::span(&out, 1), .piece_offsets = offsets});
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(refusal(turned, {}).find("strides for operand f32[2,2]"), std::string::npos);
  const kernels::LetterOffset half[] = {{'t', 2}};
  EXPECT_NE(refusal(plain, half).find("begins at 2 of letter 't'"), std::string::npos);
  EXPECT_EQ(y[0], 9);
  EXPECT_EQ(refusal(plain, {}), "");
  EXPECT_EQ(y[3], 8);
}

}  // namespace
}  // namespace hocket::test
