// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Attention over packed documents and in windows, forward, backward and cached, against a naive
// softmax.
#include <gtest/gtest.h>

#include <cmath>

#include "base/small_float.h"
#include "ops/op.h"
#include "tests/kernels/kernel_util.h"

namespace hocket::test {
namespace {

struct Naive {
  std::vector<double> o, lse, dq, dk, dv;
};

/// Computes o and, for its gradient `dy`, the gradients of q, k and v. A query sees at most
/// `window` keys (0: all). `cap` is the soft cap of scores (0: none).
Naive naive(const Values& q, const Values& k, const Values& v, const Values& pos, const Values& dy,
            double scale, int64_t window = 0, double cap = 0) {
  const int64_t n = q.type.dims[0], h = q.type.dims[1], d = q.type.dims[2], g = k.type.dims[1];
  Naive r;
  r.o.resize(q.v.size()), r.lse.resize(static_cast<size_t>(n * h));
  r.dq.resize(q.v.size()), r.dk.resize(k.v.size()), r.dv.resize(k.v.size());
  int64_t document = 0;
  for (int64_t t = 0; t < n; ++t) {
    if (pos[t] == 0) {
      document = t;
    }
    const int64_t first = window > 0 ? std::max(document, t - window + 1) : document;
    for (int64_t a = 0; a < h; ++a) {
      const int64_t at = (t * h + a) * d, kv = a / (h / g);
      auto row = [&](int64_t j) { return (j * g + kv) * d; };
      std::vector<double> p, slope;
      double top = -1e300, sum = 0;
      for (int64_t j = first; j <= t; ++j) {
        double s = 0;
        for (int64_t i = 0; i < d; ++i) {
          s += q[at + i] * k[row(j) + i];
        }
        const double tanh = cap > 0 ? std::tanh(s * scale / cap) : 0;
        p.push_back(cap > 0 ? cap * tanh : s * scale);
        slope.push_back(1 - tanh * tanh);
        top = std::max(top, p.back());
      }
      for (double& x : p) {
        sum += x = std::exp(x - top);
      }
      r.lse[t * h + a] = top + std::log(sum);
      double delta = 0;
      for (int64_t i = 0; i < d; ++i) {
        double o = 0;
        for (int64_t j = first; j <= t; ++j) {
          o += p[j - first] / sum * v[row(j) + i];
        }
        r.o[at + i] = o;
        delta += o * dy[at + i];
      }
      for (int64_t j = first; j <= t; ++j) {
        const double w = p[j - first] / sum;
        double dp = 0;
        for (int64_t i = 0; i < d; ++i) {
          dp += dy[at + i] * v[row(j) + i];
        }
        const double ds = w * (dp - delta) * scale * slope[static_cast<size_t>(j - first)];
        for (int64_t i = 0; i < d; ++i) {
          r.dv[row(j) + i] += w * dy[at + i];
          r.dq[at + i] += ds * k[row(j) + i];
          r.dk[row(j) + i] += ds * q[at + i];
        }
      }
    }
  }
  return r;
}

struct Case {
  int64_t n, h, g, d, longest, window = 0;
  double softcap = 0;
};

TEST(AttentionKernels, MatchNaiveSoftmaxForwardAndBackward) {
  Random random(5);
  for (Case c : {Case{1, 1, 1, 1, 1},
                 Case{7, 3, 1, 5, 7},
                 Case{12, 4, 2, 4, 5},
                 Case{9, 2, 2, 3, 1},
                 Case{40, 2, 1, 32, 40},
                 Case{130, 4, 2, 64, 130},
                 Case{300, 2, 2, 16, 300},
                 Case{700, 2, 1, 40, 600},
                 Case{500, 1, 1, 8, 60},
                 Case{449, 1, 1, 128, 449},
                 Case{12, 4, 2, 4, 12, 2},
                 Case{40, 2, 1, 32, 40, 7},
                 Case{300, 2, 2, 16, 300, 112},
                 Case{700, 2, 1, 40, 600, 33},
                 Case{700, 1, 1, 12, 700, 225},
                 Case{900, 2, 1, 8, 900, 500},
                 Case{449, 1, 1, 24, 449, 448},
                 Case{130, 2, 2, 8, 60, 4096},
                 Case{7, 3, 1, 5, 7, 0, 0.5},
                 Case{300, 2, 2, 16, 300, 0, 2},
                 Case{700, 2, 1, 40, 600, 0, 50},
                 Case{700, 2, 1, 40, 600, 33, 1},
                 Case{449, 1, 1, 24, 449, 448, 1}}) {
    for (bool single : {false, true}) {
      Values q = random.normals({c.n, c.h, c.d}), k = random.normals({c.n, c.g, c.d}),
             v = random.normals({c.n, c.g, c.d}), dy = random.normals({c.n, c.h, c.d});
      Values pos = random.positions(c.n, c.longest);
      for (int64_t t = 0; single && t < c.n; ++t) {
        pos[t] = static_cast<double>(t);
      }
      const double scale = 1 / std::sqrt(static_cast<double>(c.d));
      const Naive want = naive(q, k, v, pos, dy, scale, c.window, c.softcap);
      for_both([&](DType dtype, double tolerance) {
        SCOPED_TRACE(testing::Message() << c.n << " tokens, " << c.h << "/" << c.g << " heads of "
                                        << c.d << ", window " << c.window << ", softcap "
                                        << c.softcap << (single ? ", one document" : ", packed"));
        Attrs attrs{{"scale", scale}, {"group", c.h / c.g}};
        if (c.window > 0) {
          attrs.set("window", c.window);
        }
        if (c.softcap > 0) {
          attrs.set("softcap", c.softcap);
        }
        auto f =
            run({"attention", attrs, {q, k, v, pos}, {zeros({c.n, c.h, c.d}), zeros({c.n, c.h})}},
                dtype);
        expect_close(f[0], want.o, tolerance, "o");
        expect_close(f[1], want.lse, tolerance, "lse");
        Values o = f[0], lse = f[1];
        o.type.dtype = lse.type.dtype = DType::f64;
        auto b = run({"attention_bwd", attrs, {dy, q, k, v, o, lse, pos}, {q, k, v}}, dtype);
        expect_close(b[0], want.dq, 4 * tolerance, "dq");
        expect_close(b[1], want.dk, 4 * tolerance, "dk");
        expect_close(b[2], want.dv, 4 * tolerance, "dv");
      });
    }
  }
}

/// Rows [begin, end) of dim 0.
Values rows(const Values& x, int64_t begin, int64_t end) {
  Values part = x;
  const int64_t row = x.type.dims[0] == 0 ? 0 : static_cast<int64_t>(x.v.size()) / x.type.dims[0];
  part.type.dims[0] = end - begin;
  part.v.assign(x.v.begin() + begin * row, x.v.begin() + end * row);
  return part;
}

Values as_input(Values x) {
  x.type.dtype = DType::f64;
  return x;
}

struct Pieces {
  int64_t n, seq, longest;
  std::vector<int64_t> queries, keys;  ///< where the pieces begin; the last ends at n
  int64_t window = 0;
  double softcap = 0;
};

TEST(AttentionKernels, PiecesOfQueriesAndKeysGiveTheWhole) {
  // Runs every piece of queries with every piece of keys, merges the results over pieces of keys
  // and adds the gradients. Pieces begin inside documents and blocks; some see none of the keys.
  Random random(9);
  for (const Pieces& c :
       {Pieces{300, 0, 300, {0, 150, 300}, {0, 100, 230, 300}},
        Pieces{700, 350, 600, {0, 175, 350, 525, 700}, {0, 175, 350, 525, 700}},
        Pieces{260, 130, 40, {0, 7, 7, 201, 260}, {0, 129, 129, 131, 260}},
        Pieces{449, 0, 449, {0, 1, 448, 449}, {0, 1, 448, 449}},
        Pieces{300, 0, 300, {0, 150, 300}, {0, 100, 230, 300}, 40},
        Pieces{700, 0, 700, {0, 350, 700}, {0, 20, 340, 360, 700}, 300},
        Pieces{700, 350, 600, {0, 175, 350, 525, 700}, {0, 175, 350, 525, 700}, 9},
        Pieces{449, 0, 200, {0, 1, 448, 449}, {0, 1, 448, 449}, 2},
        Pieces{700, 350, 600, {0, 175, 350, 525, 700}, {0, 175, 350, 525, 700}, 9, 0.5}}) {
    const int64_t h = 2, g = 1, d = 20;
    Values q = random.normals({c.n, h, d}), k = random.normals({c.n, g, d}),
           v = random.normals({c.n, g, d}), dy = random.normals({c.n, h, d});
    Values pos = random.positions(c.n, c.longest), documents = pos;
    for (int64_t t = c.seq; c.seq > 0 && t < c.n; t += c.seq) {
      // Positions go on where a sequence ends, documents do not.
      for (int64_t i = t; i < c.n && (i == t || pos[i] != 0); ++i) {
        documents[i] = static_cast<double>(i - t);
      }
    }
    const Naive want = naive(q, k, v, documents, dy, 0.2, c.window, c.softcap);
    Attrs attrs{{"scale", 0.2}, {"group", h / g}};
    if (c.seq > 0) {
      attrs.set("seq", c.seq);
    }
    if (c.window > 0) {
      attrs.set("window", c.window);
    }
    if (c.softcap > 0) {
      attrs.set("softcap", c.softcap);
    }
    for_both([&](DType dtype, double tolerance) {
      std::vector<double> o, lse, dq, dk(k.v.size()), dv(v.v.size());
      for (size_t i = 0; i + 1 < c.queries.size(); ++i) {
        const int64_t t = c.queries[i], t_end = c.queries[i + 1];
        const auto of_queries = [&](const Values& x) { return rows(x, t, t_end); };
        const auto per_key = [&](const auto& visit) {
          for (size_t j = 0; j + 1 < c.keys.size(); ++j) {
            const int64_t s = c.keys[j], s_end = c.keys[j + 1];
            visit(s, rows(k, s, s_end), rows(v, s, s_end),
                  std::vector<kernels::LetterOffset>{{'t', t}, {'s', s}});
          }
        };
        std::vector<Values> sum{zeros({t_end - t, h, d}), zeros({t_end - t, h})};
        const std::vector<Values> types = sum;
        std::fill(sum[1].v.begin(), sum[1].v.end(), -INFINITY);
        per_key([&](int64_t, const Values& kp, const Values& vp, auto offsets) {
          const auto part = run({.op = "attention",
                                 .attrs = attrs,
                                 .in = {of_queries(q), kp, vp, of_queries(pos)},
                                 .out = types,
                                 .piece_offsets = offsets},
                                dtype);
          sum = run({"softmax_merge",
                     {},
                     {as_input(sum[0]), as_input(sum[1]), as_input(part[0]), as_input(part[1])},
                     types},
                    dtype);
        });
        o.insert(o.end(), sum[0].v.begin(), sum[0].v.end());
        lse.insert(lse.end(), sum[1].v.begin(), sum[1].v.end());
        std::vector<double> dq_part(sum[0].v.size());
        per_key([&](int64_t s, const Values& kp, const Values& vp, auto offsets) {
          const auto part = run({.op = "attention_bwd",
                                 .attrs = attrs,
                                 .in = {of_queries(dy), of_queries(q), kp, vp, as_input(sum[0]),
                                        as_input(sum[1]), of_queries(pos)},
                                 .out = {of_queries(q), kp, vp},
                                 .piece_offsets = offsets},
                                dtype);
          for (size_t e = 0; e < dq_part.size(); ++e) {
            dq_part[e] += part[0].v[e];
          }
          for (size_t e = 0; e < kp.v.size(); ++e) {
            dk[static_cast<size_t>(s * g * d) + e] += part[1].v[e];
            dv[static_cast<size_t>(s * g * d) + e] += part[2].v[e];
          }
        });
        dq.insert(dq.end(), dq_part.begin(), dq_part.end());
      }
      SCOPED_TRACE(testing::Message()
                   << c.n << " tokens, sequences of " << c.seq << ", window " << c.window);
      Values got = as_input(zeros({c.n, h, d}));
      const auto expect = [&](const std::vector<double>& sum, const std::vector<double>& whole,
                              double within, const char* what) {
        got.v = sum;
        expect_close(got, whole, within, what);
      };
      expect(o, want.o, tolerance, "o");
      expect(lse, want.lse, tolerance, "lse");
      expect(dq, want.dq, 4 * tolerance, "dq");
      expect(dk, want.dk, 4 * tolerance, "dk");
      expect(dv, want.dv, 4 * tolerance, "dv");
    });
  }
}

/// A document's first tokens, and branches that share some of them.
struct Bundle {
  int64_t trunk;
  struct Branch {
    int64_t shared, own;
  };
  std::vector<Branch> branches;
};

/// Bundles one after the other, and the same as documents that share nothing.
struct Branched {
  std::vector<double> positions, apart;
  std::vector<int64_t> of_apart;  ///< the token with branches, of a token without
  std::vector<bool> first;        ///< by token without: the first of these

  explicit Branched(const std::vector<Bundle>& bundles) {
    std::vector<bool> met;
    for (const Bundle& bundle : bundles) {
      const auto begin = std::ssize(positions);
      const auto add = [&](int64_t shared, int64_t own) {
        const int64_t at = std::ssize(positions);
        for (int64_t p = 0; p < shared + own; ++p) {
          if (p >= shared) {
            positions.push_back(static_cast<double>(p));
            met.push_back(false);
          }
          apart.push_back(static_cast<double>(p));
          of_apart.push_back(p < shared ? begin + p : at + p - shared);
          first.push_back(!met[static_cast<size_t>(of_apart.back())]);
          met[static_cast<size_t>(of_apart.back())] = true;
        }
      };
      add(0, bundle.trunk);
      for (const auto& [shared, own] : bundle.branches) {
        add(shared, own);
      }
    }
  }
  /// Rows of tokens without branches. `once`: a token's row stands once, zeros stand for it then.
  Values spread(const Values& x, bool once = false) const {
    const int64_t row = std::ssize(x.v) / x.type.dims[0];
    Values out = x;
    out.type.dims[0] = std::ssize(of_apart);
    out.v.assign(static_cast<size_t>(out.type.dims[0] * row), 0);
    for (size_t t = 0; t < of_apart.size(); ++t) {
      if (once && !first[t]) continue;
      std::copy_n(x.v.begin() + of_apart[t] * row, row,
                  out.v.begin() + static_cast<int64_t>(t) * row);
    }
    return out;
  }
  /// Sums of the rows of a token.
  std::vector<double> sums(const Values& x) const {
    const int64_t row = std::ssize(x.v) / x.type.dims[0];
    std::vector<double> out(positions.size() * static_cast<size_t>(row));
    for (size_t i = 0; i < x.v.size(); ++i) {
      const auto n = static_cast<int64_t>(i);
      out[static_cast<size_t>(of_apart[i / static_cast<size_t>(row)] * row + n % row)] += x.v[i];
    }
    return out;
  }
};

TEST(AttentionKernels, BranchesGiveTheBitsOfDocuments) {
  struct Setting {
    std::vector<Bundle> bundles;
    int64_t h, g, d, window = 0, seq = 0;
    double softcap = 0;
  };
  const Bundle few{3, {{1, 3}, {3, 1}, {3, 4}}}, one{5, {}};
  const Bundle texts{20, {{11, 9}, {11, 9}, {11, 1}, {11, 30}}};
  const Bundle answers{300, {{113, 150}, {223, 3}, {224, 230}, {299, 240}, {300, 2}}};
  Random random(12);
  for (const Setting& c :
       {Setting{{few}, 1, 1, 1}, Setting{{one, few, one}, 4, 2, 4},
        Setting{{texts, one, texts}, 6, 2, 32}, Setting{{answers, texts}, 2, 1, 40},
        Setting{{answers}, 2, 2, 64}, Setting{{few, texts, few}, 2, 1, 24, 4},
        Setting{{answers, texts}, 2, 1, 16, 90}, Setting{{answers, few}, 2, 1, 8, 250},
        Setting{{texts, texts}, 2, 1, 8, 0, 69}, Setting{{few, answers}, 2, 2, 20, 0, 0, 2},
        Setting{{texts, few}, 4, 1, 12, 6, 0, 0.5}}) {
    const Branched tokens(c.bundles);
    const int64_t n = std::ssize(tokens.positions);
    const Values q = random.normals({n, c.h, c.d}), k = random.normals({n, c.g, c.d}),
                 v = random.normals({n, c.g, c.d}), dy = random.normals({n, c.h, c.d});
    Attrs attrs{{"scale", 0.3}, {"group", c.h / c.g}};
    if (c.window > 0) {
      attrs.set("window", c.window);
    }
    if (c.softcap > 0) {
      attrs.set("softcap", c.softcap);
    }
    Attrs in_sequences = attrs;
    if (c.seq > 0) {
      in_sequences.set("seq", c.seq);
    }
    for_both([&](DType dtype, double tolerance) {
      SCOPED_TRACE(testing::Message()
                   << n << " tokens, " << c.h << "/" << c.g << " heads of " << c.d << ", window "
                   << c.window << ", softcap " << c.softcap);
      const auto forward = [&](const Attrs& with, const Values& qs, const Values& ks,
                               const Values& vs, const std::vector<double>& pos) {
        const Values lse = zeros({qs.type.dims[0], c.h});
        return run({"attention", with, {qs, ks, vs, integers(pos)}, {qs, lse}}, dtype);
      };
      const auto got = forward(in_sequences, q, k, v, tokens.positions);
      const Values qs = tokens.spread(q), ks = tokens.spread(k), vs = tokens.spread(v);
      const auto want = forward(attrs, qs, ks, vs, tokens.apart);
      EXPECT_EQ(tokens.spread(got[0]).v, want[0].v);
      EXPECT_EQ(tokens.spread(got[1]).v, want[1].v);
      const auto backward = [&](const Attrs& with, const Values& dys, const Values& of_q,
                                const Values& of_k, const Values& of_v,
                                const std::vector<Values>& o, const std::vector<double>& pos) {
        return run({"attention_bwd",
                    with,
                    {dys, of_q, of_k, of_v, as_input(o[0]), as_input(o[1]), integers(pos)},
                    {of_q, of_k, of_v}},
                   dtype);
      };
      const auto gradients = backward(in_sequences, dy, q, k, v, got, tokens.positions);
      const auto apart = backward(attrs, tokens.spread(dy, true), qs, ks, vs, want, tokens.apart);
      const char* names[] = {"dq", "dk", "dv"};
      for (size_t i = 0; i < 3; ++i) {
        expect_close(gradients[i], tokens.sums(apart[i]), 4 * tolerance, names[i]);
      }
    });
  }
}

TEST(AttentionKernels, APartWithoutKeysChangesNothing) {
  Random random(10);
  const Values o = random.normals({5, 2, 3}), lse = random.normals({5, 2}, 50);
  Values none = zeros({5, 2, 3}), low = zeros({5, 2});
  std::fill(low.v.begin(), low.v.end(), -INFINITY);
  for_both([&](DType dtype, double) {
    const auto rounded = run({"copy", {}, {o}, {o}}, dtype)[0].v;
    const auto rounded_lse = run({"copy", {}, {lse}, {lse}}, dtype)[0].v;
    for (const auto& in : {std::vector{o, lse, none, low}, std::vector{none, low, o, lse}}) {
      const auto merged = run({"softmax_merge", {}, in, {o, lse}}, dtype);
      EXPECT_EQ(merged[0].v, rounded);
      EXPECT_EQ(merged[1].v, rounded_lse);
    }
    const auto nothing = run({"softmax_merge", {}, {none, low, none, low}, {o, lse}}, dtype);
    EXPECT_EQ(nothing[0].v, none.v);
    EXPECT_EQ(nothing[1].v, low.v);
  });
}

TEST(AttentionKernels, RefusePositionsThatDoNotCount) {
  const Values x = zeros({4, 1, 2}), lse = zeros({4, 1});
  const auto with = [&](std::vector<double> positions) {
    return run({"attention",
                {{"scale", 1.0}, {"group", int64_t{1}}},
                {x, x, x, integers(std::move(positions))},
                {x, lse}},
               DType::f32);
  };
  EXPECT_NO_THROW(with({0, 1, 0, 1}));
  EXPECT_NO_THROW(with({7, 8, 9, 10}));  // a document that began earlier
  EXPECT_NO_THROW(with({0, 1, 1, 2}));   // a branch that shares one token
  EXPECT_THROW(with({0, 1, 3, 4}), std::runtime_error);
  EXPECT_THROW(with({0, 2, 1, 2}), std::runtime_error);
  EXPECT_THROW(with({7, 8, 1, 2}), std::runtime_error);  // of tokens that are not here
  EXPECT_THROW(with({-1, 0, 1, 2}), std::runtime_error);
}

TEST(AttentionKernels, DocumentsNeverSeeEachOther) {
  Random random(6);
  Values q = random.normals({30, 2, 8}), k = random.normals({30, 1, 8}),
         v = random.normals({30, 1, 8});
  Values pos = zeros({30}, DType::i32);
  for (int64_t t = 0; t < 30; ++t) {
    pos[t] = static_cast<double>(t % 10);
  }
  const Attrs attrs{{"scale", 0.3}, {"group", int64_t{2}}};
  const Values o = zeros({30, 2, 8}), lse = zeros({30, 2});
  const auto a = run({"attention", attrs, {q, k, v, pos}, {o, lse}}, DType::f32);
  for (int64_t i = 10 * 8; i < 20 * 8; ++i) {
    k[i] = v[i] = 1e30;  // the second of three documents
  }
  const auto b = run({"attention", attrs, {q, k, v, pos}, {o, lse}}, DType::f32);
  for (int64_t t = 0; t < 30; ++t) {
    for (int64_t i = 0; i < 16 && t / 10 != 1; ++i) {
      ASSERT_EQ(a[0][t * 16 + i], b[0][t * 16 + i]) << "token " << t;
    }
  }
}

TEST(AttentionKernels, LargeScoresDoNotOverflow) {
  Random random(7);
  Values q = random.normals({20, 1, 4}, 300), k = random.normals({20, 1, 4}, 300),
         v = random.normals({20, 1, 4}), pos = zeros({20}, DType::i32);
  for (int64_t t = 0; t < 20; ++t) {
    pos[t] = static_cast<double>(t);
  }
  const Naive want = naive(q, k, v, pos, v, 1.0);
  const auto f = run({"attention",
                      {{"scale", 1.0}, {"group", int64_t{1}}},
                      {q, k, v, pos},
                      {zeros({20, 1, 4}), zeros({20, 1})}},
                     DType::f64);
  expect_close(f[0], want.o, 1e-11, "o");
  expect_close(f[1], want.lse, 1e-12, "lse");
}

TEST(AttentionKernels, AKeyOutsideOfTheWindowIsNeverSeen) {
  // Scratch memory of a skipped tile holds old values, even NaN. They must not reach the result.
  Random random(12);
  const int64_t n = 600, window = 50;
  Values q = random.normals({n, 1, 8}), k = random.normals({n, 1, 8}),
         v = random.normals({n, 1, 8}), pos = zeros({n}, DType::i32);
  for (int64_t t = 0; t < n; ++t) {
    pos[t] = static_cast<double>(t);
  }
  const Attrs attrs{{"scale", 0.3}, {"group", int64_t{1}}, {"window", window}};
  const Values o = zeros({n, 1, 8}), lse = zeros({n, 1});
  const auto a = run({"attention", attrs, {q, k, v, pos}, {o, lse}}, DType::f32);
  for (int64_t i = 0; i < 200 * 8; ++i) {
    k[i] = v[i] = 1e30;
  }
  const auto b = run({"attention", attrs, {q, k, v, pos}, {o, lse}}, DType::f32);
  for (int64_t i = (200 + window - 1) * 8; i < n * 8; ++i) {
    ASSERT_EQ(a[0][i], b[0][i]) << "token " << i / 8;
  }
}

}  // namespace
}  // namespace hocket::test
