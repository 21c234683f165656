// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/kernel_util.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "kernels/backend.h"
#include "ops/op.h"
#include "tests/compare_util.h"
#include "tests/number_util.h"

namespace hocket::test {
namespace {

/// The backend under test; null: the one that programs use.
kernels::Backend* used = nullptr;
kernels::Backend& cpu() { return used ? *used : *kernels::cpu_backend(); }

constexpr size_t kGuard = 256;

/// n bytes at a 64-byte boundary between guards.
class Guarded {
 public:
  explicit Guarded(size_t n) : n_(n), memory_(n + 2 * kGuard + 64) {
    auto at = reinterpret_cast<uintptr_t>(memory_.data()) + kGuard;
    data_ = reinterpret_cast<std::byte*>((at + 63) / 64 * 64);
    for (size_t i = 0; i < kGuard; ++i) {
      data_[n_ + i] = *(data_ - 1 - i) = pattern(i);
    }
  }
  std::byte* data() { return data_; }
  size_t size() const { return n_; }
  bool intact() const {
    for (size_t i = 0; i < kGuard; ++i) {
      if (data_[n_ + i] != pattern(i) || *(data_ - 1 - i) != pattern(i)) return false;
    }
    return true;
  }
  void fill_nan() { std::memset(data_, 0xff, n_); }  // NaN in every floating type

 private:
  static std::byte pattern(size_t i) { return static_cast<std::byte>(0xA5 ^ i); }
  size_t n_;
  std::vector<std::byte> memory_;
  std::byte* data_;
};

template <typename T>
void put(const Values& v, std::byte* to) {
  for (size_t i = 0; i < v.v.size(); ++i) {
    T x = static_cast<T>(v.v[i]);
    std::memcpy(to + i * sizeof(T), &x, sizeof(T));
  }
}
template <typename T>
void get(const std::byte* from, size_t n, std::vector<double>& to) {
  to.resize(n);
  for (size_t i = 0; i < n; ++i) {
    T x;
    std::memcpy(&x, from + i * sizeof(T), sizeof(T));
    to[i] = static_cast<double>(x);
  }
}
void put(const Values& v, std::byte* to) {
  switch (v.type.dtype) {
    case DType::f32:
      return put<float>(v, to);
    case DType::f64:
      return put<double>(v, to);
    case DType::i32:
      return put<int32_t>(v, to);
    case DType::bf16:
    case DType::f16:
      for (size_t i = 0; i < v.v.size(); ++i) {
        store_element(v.type.dtype, v.v[i], to + 2 * i);
      }
      return;
    default:
      return put<int64_t>(v, to);
  }
}
void get(const std::byte* from, Values& v, size_t n) {
  switch (v.type.dtype) {
    case DType::f32:
      return get<float>(from, n, v.v);
    case DType::f64:
      return get<double>(from, n, v.v);
    case DType::i32:
      return get<int32_t>(from, n, v.v);
    case DType::bf16:
    case DType::f16:
      v.v.resize(n);
      for (size_t i = 0; i < n; ++i) {
        v.v[i] = load_element(v.type.dtype, from + 2 * i);
      }
      return;
    default:
      return get<int64_t>(from, n, v.v);
  }
}

size_t stored(const Values& v) {
  return v.type.routed() ? v.v.size() : static_cast<size_t>(v.type.numel());
}

std::vector<Values> run_once(const Call& call, const std::vector<Values>& in,
                             const std::vector<Values>& out, int threads) {
  cpu().enter_thread(threads);
  std::vector<std::unique_ptr<Guarded>> buffers_in, buffers_out;
  std::vector<kernels::TensorRef> refs_in, refs_out;
  for (const Values& v : in) {
    auto b = std::make_unique<Guarded>(stored(v) * static_cast<size_t>(size_of(v.type.dtype)));
    put(v, b->data());
    refs_in.push_back({b->data(), &v.type});
    buffers_in.push_back(std::move(b));
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const Values& v = out[i];
    Guarded* shared = nullptr;
    for (auto [from, to] : call.inplace) {
      if (to == static_cast<int>(i)) {
        shared = buffers_in[from].get();
      }
    }
    auto b = std::make_unique<Guarded>(
        shared ? 0 : stored(v) * static_cast<size_t>(size_of(v.type.dtype)));
    b->fill_nan();
    if (call.accumulate >> i & 1) {
      put(v, b->data());
    }
    refs_out.push_back({shared ? shared->data() : b->data(), &v.type});
    buffers_out.push_back(std::move(b));
  }
  std::vector<TensorType> types_in, types_out;
  for (const Values& v : in) {
    types_in.push_back(v.type);
  }
  for (const Values& v : out) {
    types_out.push_back(v.type);
  }
  Guarded workspace(
      static_cast<size_t>(ops::workspace_bytes(call.op, call.attrs, types_in, types_out)));
  workspace.fill_nan();
  const kernels::KernelArgs args{&call.attrs,       refs_in,
                                 refs_out,          call.accumulate,
                                 workspace.data(),  static_cast<int64_t>(workspace.size()),
                                 call.piece_offsets};
  kernels::KernelFn fn = cpu().find(call.op, kernels::Device::cpu, {types_in, types_out});
  if (!fn) throw std::runtime_error("no kernel of " + call.op);
  fn(args);
  EXPECT_TRUE(workspace.intact()) << call.op << " wrote beyond its workspace";
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_TRUE(buffers_in[i]->intact()) << call.op << " wrote around input " << i;
    bool inplace = false;
    for (auto [from, to] : call.inplace) {
      inplace |= from == static_cast<int>(i);
    }
    Guarded before(buffers_in[i]->size());
    put(in[i], before.data());
    if (!inplace) {
      EXPECT_EQ(std::memcmp(before.data(), buffers_in[i]->data(), before.size()), 0)
          << call.op << " changed input " << i;
    }
  }
  std::vector<Values> result = out;
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_TRUE(buffers_out[i]->intact()) << call.op << " wrote around output " << i;
    get(static_cast<std::byte*>(refs_out[i].data), result[i], stored(out[i]));
  }
  return result;
}

}  // namespace

double Random::uniform() {
  state_ += 0x9E3779B97F4A7C15u;  // splitmix64
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}
double Random::normal() {
  return std::sqrt(-2 * std::log(1 - uniform())) * std::cos(6.283185307179586 * uniform());
}
int64_t Random::below(int64_t n) {
  return static_cast<int64_t>(uniform() * static_cast<double>(n));
}

Values Random::normals(graph::Dims dims, double scale) {
  Values v = zeros(std::move(dims));
  for (double& x : v.v) {
    x = static_cast<float>(scale * normal());  // exact in f32 too
  }
  return v;
}
Values Random::positions(int64_t tokens, int64_t longest) {
  Values v = zeros({tokens}, DType::i32);
  for (int64_t t = 0; t < tokens;) {
    for (int64_t i = 0, n = 1 + below(longest); i < n && t < tokens; ++i, ++t) {
      v[t] = static_cast<double>(i);
    }
  }
  return v;
}

Values zeros(graph::Dims dims, DType dtype) {
  Values v{{dtype, std::move(dims)}, {}};
  v.v.assign(static_cast<size_t>(v.type.numel()), 0.0);
  return v;
}
Values integers(std::vector<double> v, DType dtype) {
  return {{dtype, {static_cast<int64_t>(v.size())}}, std::move(v)};
}
Values fixed(std::vector<double> v) {
  const auto n = static_cast<int64_t>(v.size());
  return {{DType::f64, {n}}, std::move(v), true};
}
Values routed(Random& random, graph::Dims dims, int32_t k, int64_t rows) {
  Values v{{DType::f64, std::move(dims), k}, {}};
  v.v.resize(static_cast<size_t>(rows * v.type.row_size()));
  for (double& x : v.v) {
    x = static_cast<float>(random.normal());
  }
  return v;
}

/// Also of numbers that are no numbers.
static bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) {
    return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y);
  });
}

std::vector<Values> run(const Call& call, DType dtype) {
  auto convert = [dtype](std::vector<Values> list) {
    for (Values& v : list) {
      if (v.type.dtype == DType::f64 && !v.fixed) {
        v.type.dtype = dtype;
      }
    }
    return list;
  };
  const std::vector<Values> in = convert(call.in), out = convert(call.out);
  std::vector<Values> one = run_once(call, in, out, 1);
  std::vector<Values> three = run_once(call, in, out, 3);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(same_bits(one[i].v, three[i].v))
        << call.op << ": output " << i << " depends on the number of threads";
  }
  return one;
}

void for_both(const std::function<void(DType, double)>& check) {
  const auto backends = kernels::cpu_backends();
  for (const auto& backend : backends) {
    // Threads share a kernel's work alike in every type and on every level.
    const bool is_all = !has_thread_sanitizer();
    if (!is_all && backend != backends.back()) continue;
    used = backend.get();
    if (is_all) {
      SCOPED_TRACE(backend->describe() + ", f64");
      check(DType::f64, 1e-12);
    }
    SCOPED_TRACE(backend->describe() + ", f32");
    check(DType::f32, 1e-5);
  }
  used = nullptr;
}

void expect_close(const Values& got, const std::vector<double>& want, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(got.v.size(), want.size()) << what;
  double top = 1e-2;
  for (double x : want) {
    top = std::max(top, std::abs(x));
  }
  for (size_t i = 0; i < want.size(); ++i) {
    if (!(std::abs(got.v[i] - want[i]) <= tolerance * top)) {
      ADD_FAILURE() << what << "[" << i << "] of " << want.size() << ": got " << got.v[i]
                    << ", expected " << want[i] << " within " << tolerance * top;
      return;
    }
  }
}

}  // namespace hocket::test
