// SPDX-License-Identifier: Apache-2.0
// Our dense products beside those of BLAS libraries, f32, at the shapes of configs/models/dense-26m
// and moe-36m (2,048 tokens): forward, dX and dW of every weight, the chunks of the head, the
// products of eight experts with 512 rows each. Libraries are loaded by path, so that none is
// needed to build this:
//
//   hocket_gemm_compare [--threads N] [--rounds N] openblas=libopenblas.so blis=libblis.so
//                       onednn=libdnnl.so mkl=libmkl_rt.so
//
// Every round times every library on every shape, in an order that changes; the table shows the
// median over rounds and, as its spread, half the distance of the quartiles. The second table says
// whether a library's bits depend on its threads, on the alignment of its operands, or on the other
// rows.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "kernels/backend.h"
#include "ops/op.h"

namespace hocket {
namespace {

using graph::TensorType;

constexpr int64_t kTokens = 2048, kExperts = 8, kExpertRows = 512, kHeadRows = 256;

/// C[m,n] = op(A) op(B) (+ C), row-major and dense, `times` of them side by side (experts).
struct Product {
  std::string name;
  std::string op;  ///< of ours: linear, linear_dx, linear_dw, or their grouped forms
  bool trans_a = false, trans_b = false;
  int64_t m = 0, n = 0, k = 0, times = 1;
  bool add = false;
  double flops() const { return 2.0 * static_cast<double>(m) * n * k * times; }
};

/// Forward, dX and dW of a weight [out, in] applied to `rows` rows.
void append(std::vector<Product>& list, const std::string& name, int64_t rows, int64_t out,
            int64_t in, int64_t times = 1) {
  const std::string prefix = times > 1 ? "grouped_linear" : "linear";
  list.push_back({name, prefix, false, true, rows, out, in, times});
  list.push_back({name + " dX", prefix + "_dx", false, false, rows, in, out, times});
  list.push_back({name + " dW", prefix + "_dw", true, false, out, in, rows, times, true});
}

std::vector<Product> products() {
  std::vector<Product> list;
  append(list, "q, o 384x384", kTokens, 384, 384);
  append(list, "k, v 128x384", kTokens, 128, 384);
  append(list, "gate, up 2304x384", kTokens, 2304, 384);
  append(list, "down 384x1152", kTokens, 384, 1152);
  append(list, "router 8x384", kTokens, 8, 384);
  append(list, "head 16384x384, 256 rows", kHeadRows, 16384, 384);
  append(list, "experts 8 x 768x384", kExpertRows, 768, 384, kExperts);
  append(list, "experts 8 x 384x384", kExpertRows, 384, 384, kExperts);
  return list;
}

using Memory = std::unique_ptr<float, decltype(&std::free)>;

Memory allocate(int64_t elements) {
  const auto bytes = static_cast<size_t>((elements * 4 + 4096 + 63) / 64 * 64);
  Memory memory(static_cast<float*>(std::aligned_alloc(64, bytes)), &std::free);
  for (size_t i = 0; i < bytes / 4; ++i) {
    memory.get()[i] = static_cast<float>((i * 0x9E3779B97F4A7C15u >> 33) % 2001) * 1e-3f - 1.0f;
  }
  return memory;
}

struct Operands {
  const float *a, *b;
  float* c;
};

/// One implementation: runs products on a number of threads.
class Library {
 public:
  virtual ~Library() = default;
  virtual void set_threads(int n) = 0;
  virtual void run(const Product& p, const Operands& x) = 0;
};

class Ours final : public Library {
 public:
  void set_threads(int n) override { backend_->enter_thread(n); }

  void run(const Product& p, const Operands& x) override {
    const Prepared& ready = prepare(p);
    const float* first = x.a;
    const float* second = x.b;
    std::vector<kernels::TensorRef> in{{const_cast<float*>(first), &ready.in[0]},
                                       {const_cast<float*>(second), &ready.in[1]}};
    if (p.times > 1) {
      in.push_back({const_cast<int64_t*>(ready.counts.data()), &ready.in[2]});
    }
    const kernels::TensorRef out[] = {{x.c, &ready.out[0]}};
    ready.kernel({.attrs = &ready.attrs,
                  .in = in,
                  .out = out,
                  .accumulate = p.add ? 1u : 0u,
                  .workspace = reinterpret_cast<std::byte*>(ready.workspace.get()),
                  .workspace_bytes = ready.workspace_bytes});
  }

 private:
  struct Prepared {
    std::vector<TensorType> in, out;
    std::vector<int64_t> counts;
    graph::Attrs attrs;
    Memory workspace{nullptr, &std::free};
    int64_t workspace_bytes = 0;
    kernels::KernelFn kernel = nullptr;
  };

  /// Types of the op's operands from the product's shape; made once per product.
  const Prepared& prepare(const Product& p) {
    auto [it, fresh] = prepared_.try_emplace(p.name + p.op);
    Prepared& r = it->second;
    if (!fresh) return r;
    const auto f32 = graph::DType::f32;
    const bool dw = p.trans_a;
    if (p.times == 1) {
      r.in = dw ? std::vector<TensorType>{{f32, {p.k, p.m}}, {f32, {p.k, p.n}}}
                : std::vector<TensorType>{
                      {f32, {p.m, p.k}},
                      {f32, p.trans_b ? graph::Dims{p.n, p.k} : graph::Dims{p.k, p.n}}};
      r.out = {{f32, {p.m, p.n}}};
    } else {
      // Routed tensors of top_k 1: as many rows as tokens.
      const int64_t tokens = p.times * (dw ? p.k : p.m);
      const auto rows = [&](int64_t size) { return TensorType{f32, {p.times, tokens, size}, 1}; };
      r.in = dw ? std::vector<TensorType>{rows(p.m), rows(p.n)}
                : std::vector<TensorType>{rows(p.k),
                                          {f32, p.trans_b ? graph::Dims{p.times, p.n, p.k}
                                                          : graph::Dims{p.times, p.k, p.n}}};
      r.in.push_back({graph::DType::i64, {p.times}});
      r.out = {dw ? TensorType{f32, {p.times, p.m, p.n}} : rows(p.n)};
      r.counts.assign(static_cast<size_t>(p.times), dw ? p.k : p.m);
    }
    r.workspace_bytes = ops::workspace_bytes(p.op, r.attrs, r.in, r.out);
    r.workspace = allocate(r.workspace_bytes / 4);
    r.kernel = backend_->find(p.op, kernels::Device::cpu, {r.in, r.out});
    return r;
  }

  std::shared_ptr<kernels::Backend> backend_ = kernels::cpu_backend();
  std::map<std::string, Prepared> prepared_;
};

/// A shared library with either the C interface of BLAS or oneDNN's.
class Loaded final : public Library {
 public:
  Loaded(const std::string& kind, const std::string& path) {
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle_) fail("gemm compare", "can't load '{}': {}", path, dlerror());
    if (kind == "onednn") {
      find(dnnl_, "dnnl_sgemm");
      // The OpenMP runtime that the library brought along.
      find(set_threads_int_, "omp_set_num_threads");
    } else {
      find(cblas_, "cblas_sgemm");
      if (kind == "blis") {
        find(set_threads_long_, "bli_thread_set_num_threads");
      } else {
        find(set_threads_int_, kind == "mkl" ? "MKL_Set_Num_Threads" : "openblas_set_num_threads");
      }
    }
  }

  void set_threads(int n) override {
    if (set_threads_int_) {
      set_threads_int_(n);
    } else {
      set_threads_long_(n);
    }
  }

  void run(const Product& p, const Operands& x) override {
    const int64_t lda = p.trans_a ? p.m : p.k, ldb = p.trans_b ? p.k : p.n;
    for (int64_t i = 0; i < p.times; ++i) {
      const float* a = x.a + i * p.m * p.k;
      const float* b = x.b + i * p.n * p.k;
      float* c = x.c + i * p.m * p.n;
      const float beta = p.add ? 1.0f : 0.0f;
      if (dnnl_) {
        dnnl_(p.trans_a ? 'T' : 'N', p.trans_b ? 'T' : 'N', p.m, p.n, p.k, 1.0f, a, lda, b, ldb,
              beta, c, p.n);
      } else {
        constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;
        cblas_(kRowMajor, p.trans_a ? kTransposed : kPlain, p.trans_b ? kTransposed : kPlain,
               static_cast<int>(p.m), static_cast<int>(p.n), static_cast<int>(p.k), 1.0f, a,
               static_cast<int>(lda), b, static_cast<int>(ldb), beta, c, static_cast<int>(p.n));
      }
    }
  }

 private:
  template <typename F>
  void find(F& to, const char* name) {
    to = reinterpret_cast<F>(dlsym(handle_, name));
    if (!to) fail("gemm compare", "{}", dlerror());
  }

  void* handle_;
  int (*dnnl_)(char, char, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*,
               int64_t, float, float*, int64_t) = nullptr;
  void (*cblas_)(int, int, int, int, int, int, float, const float*, int, const float*, int, float,
                 float*, int) = nullptr;
  void (*set_threads_int_)(int) = nullptr;
  void (*set_threads_long_)(int64_t) = nullptr;
};

struct Entry {
  std::string name;
  std::unique_ptr<Library> library;
};

/// Seconds of one call, from as many as take 8 ms.
double seconds(Library& library, const Product& p, const Operands& x) {
  using Clock = std::chrono::steady_clock;
  library.run(p, x);
  const auto begin = Clock::now();
  int calls = 0;
  double passed = 0;
  do {
    library.run(p, x);
    ++calls;
    passed = std::chrono::duration<double>(Clock::now() - begin).count();
  } while (passed < 8e-3);
  return passed / calls;
}

double quantile(std::vector<double> v, double q) {
  std::sort(v.begin(), v.end());
  return v[q * static_cast<double>(v.size() - 1) + 0.5];
}

struct Buffers {
  Memory a{nullptr, &std::free}, b{nullptr, &std::free}, c{nullptr, &std::free};
};

Buffers buffers_for(const Product& p) {
  return {allocate(p.m * p.k * p.times), allocate(p.n * p.k * p.times),
          allocate(p.m * p.n * p.times)};
}

/// GFLOP/s of all libraries on all products, one markdown row per product.
void time_all(std::vector<Entry>& libraries, int threads, int rounds) {
  const std::vector<Product> list = products();
  std::vector<Buffers> memory;
  for (const Product& p : list) {
    memory.push_back(buffers_for(p));
  }
  std::vector<std::vector<std::vector<double>>> taken(
      list.size(), std::vector<std::vector<double>>(libraries.size()));
  for (int round = 0; round < rounds; ++round) {
    for (size_t turn = 0; turn < libraries.size(); ++turn) {
      const size_t l = (turn + static_cast<size_t>(round)) % libraries.size();
      Library& library = *libraries[l].library;
      library.set_threads(threads);
      // Threads of the library before still spin for a while.
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      for (size_t i = 0; i < list.size(); ++i) {
        const Operands x{memory[i].a.get(), memory[i].b.get(), memory[i].c.get()};
        taken[i][l].push_back(seconds(library, list[i], x));
      }
    }
  }
  fmt::print(
      "\nGFLOP/s on {} thread{} (median of {} rounds ± half the distance of the quartiles)\n\n| |",
      threads, threads > 1 ? "s" : "", rounds);
  for (const Entry& e : libraries) {
    fmt::print(" {} |", e.name);
  }
  fmt::print(" ours / best |\n|---|");
  for (size_t l = 0; l <= libraries.size(); ++l) {
    fmt::print("---|");
  }
  fmt::print("\n");
  std::vector<double> total(libraries.size());
  for (size_t i = 0; i < list.size(); ++i) {
    fmt::print("| {} |", list[i].name);
    double best = 1e300;
    for (size_t l = 0; l < libraries.size(); ++l) {
      const std::vector<double>& t = taken[i][l];
      const double median = quantile(t, 0.5), work = list[i].flops() * 1e-9;
      const double spread = (work / quantile(t, 0.25) - work / quantile(t, 0.75)) / 2;
      fmt::print(" {:.0f} ± {:.0f} |", work / median, spread);
      total[l] += median;
      if (l > 0) {
        best = std::min(best, median);
      }
    }
    fmt::print(" {:.2f} |\n", best / quantile(taken[i][0], 0.5));
  }
  fmt::print("| all, ms |");
  for (double t : total) {
    fmt::print(" {:.2f} |", t * 1e3);
  }
  fmt::print(" {:.2f} |\n", *std::min_element(total.begin() + 1, total.end()) / total[0]);
}

/// Bits of C for `threads`, with all operands `shift` floats beyond a 64-byte boundary; rows in two
/// calls if `halves`.
std::vector<float> result(Library& library, Product p, int threads, int64_t shift, bool halves) {
  library.set_threads(threads);
  p.add = false;
  const auto shifted = [shift](const Memory& from, int64_t n) {
    Memory to = allocate(n + shift);
    std::memcpy(to.get() + shift, from.get(), static_cast<size_t>(n) * 4);
    return to;
  };
  const Memory base_a = allocate(p.m * p.k), base_b = allocate(p.n * p.k);
  const Memory a = shifted(base_a, p.m * p.k), b = shifted(base_b, p.n * p.k),
               c = allocate(p.m * p.n + shift);
  const int64_t first = halves ? p.m / 2 / 8 * 8 + 3 : p.m;
  Product part = p;
  part.m = first;
  part.name += " first";
  library.run(part, {a.get() + shift, b.get() + shift, c.get() + shift});
  if (first < p.m) {
    part.m = p.m - first;
    part.name += " rest";
    library.run(part,
                {a.get() + shift + first * p.k, b.get() + shift, c.get() + shift + first * p.n});
  }
  return {c.get() + shift, c.get() + shift + p.m * p.n};
}

/// Returns the timed products, and sizes at which libraries take other paths.
std::vector<Product> products_and_odd_sizes() {
  std::vector<Product> list = products();
  for (const int64_t rows : {33, 60, 128}) {
    for (const int64_t out : {8, 33, 2100}) {
      append(list, fmt::format("{}x40, {} rows", out, rows), rows, out, 40);
    }
  }
  return list;
}

/// Counts the products whose bits do not depend on threads, alignment or the other rows.
void compare_bits(std::vector<Entry>& libraries) {
  fmt::print(
      "\nProducts (of those above, one expert each, and of odd sizes) whose bits stay the same\n\n"
      "| | 1, 2, 3 threads | operands 4, 16, 32 bytes off | rows in two calls (not dW) "
      "|\n|---|---|---|---|\n");
  for (Entry& e : libraries) {
    int threads = 0, alignment = 0, rows = 0, all = 0, forward = 0;
    for (Product p : products_and_odd_sizes()) {
      p.times = 1;
      p.op = p.trans_a ? "linear_dw" : p.trans_b ? "linear" : "linear_dx";
      const auto same = [](const std::vector<float>& x, const std::vector<float>& y) {
        return std::memcmp(x.data(), y.data(), x.size() * 4) == 0;
      };
      Library& library = *e.library;
      const std::vector<float> one = result(library, p, 1, 0, false);
      threads +=
          same(one, result(library, p, 2, 0, false)) && same(one, result(library, p, 3, 0, false));
      alignment += same(one, result(library, p, 1, 1, false)) &&
                   same(one, result(library, p, 1, 4, false)) &&
                   same(one, result(library, p, 1, 8, false));
      ++all;
      if (!p.trans_a) {
        rows += same(one, result(library, p, 1, 0, true));
        ++forward;
      }
    }
    fmt::print("| {} | {} of {} | {} of {} | {} of {} |\n", e.name, threads, all, alignment, all,
               rows, forward);
  }
}

int run(int argc, char** argv) {
  std::vector<int> threads = {1, 2};
  int rounds = 11;
  std::vector<Entry> libraries;
  libraries.push_back({"ours", std::make_unique<Ours>()});
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equal = word.find('=');
    if (word == "--threads" && i + 1 < argc) {
      threads = {std::atoi(argv[++i])};
    } else if (word == "--rounds" && i + 1 < argc) {
      rounds = std::atoi(argv[++i]);
    } else if (equal != std::string::npos) {
      const std::string kind = word.substr(0, equal);
      libraries.push_back({kind, std::make_unique<Loaded>(kind, word.substr(equal + 1))});
    } else {
      fail("gemm compare",
           "unknown argument '{}'; expected --threads N, --rounds N or <library>=<path>", word);
    }
  }
  if (libraries.size() < 2) {
    fail("gemm compare",
         "nothing to compare with; try openblas=/usr/lib/x86_64-linux-gnu/libopenblas.so.0");
  }
  for (int n : threads) {
    time_all(libraries, n, rounds);
  }
  compare_bits(libraries);
  return 0;
}

}  // namespace
}  // namespace hocket

int main(int argc, char** argv) {
  try {
    return hocket::run(argc, argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 2;
  }
}
