// SPDX-License-Identifier: Apache-2.0
// Speed of every kernel at the shapes of configs/models/dense-26m and moe-36m (2,048 tokens in four
// documents, f32), on HOCKET_BENCH_THREADS threads (default 2). Counters: GFLOP/s of products and
// attention (causal FLOPs), GB/s of the rest. bench/kernels_vs_aten.py sets ATen's beside them.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "ops/op.h"

namespace hocket {
namespace {

using graph::Attrs;
using graph::DType;
using graph::TensorType;

constexpr int64_t kT = 2048, kSeq = 512, kD = 384, kH = 6, kG = 2, kHead = 64, kF = 1152,
                  kV = 16384;
constexpr int64_t kE = 8, kK = 2, kFe = 384, kWindow = 64;

struct Case {
  std::string name, op;
  Attrs attrs;
  std::vector<TensorType> in, out;
  double flops = 0;  ///< 0: memory-bound, GB/s is shown
  uint32_t accumulate = 0;
  std::vector<std::pair<int, int>> inplace = {};
};

TensorType f32(graph::Dims dims) { return {DType::f32, std::move(dims)}; }
TensorType i32(graph::Dims dims) { return {DType::i32, std::move(dims)}; }
TensorType rows(graph::Dims dims) { return {DType::f32, std::move(dims), kK}; }

std::vector<Case> cases() {
  std::vector<Case> list;
  struct Product {
    const char* name;
    int64_t n, k;
  };
  for (Product p : {Product{"q", kH * kHead, kD}, Product{"kv", kG * kHead, kD},
                    Product{"gate_up", 2 * kF, kD}, Product{"down", kD, kF}}) {
    const double flops = 2.0 * kT * p.n * p.k;
    const TensorType x = f32({kT, p.k}), w = f32({p.n, p.k}), y = f32({kT, p.n});
    list.push_back({std::string("linear/") + p.name, "linear", {}, {x, w}, {y}, flops});
    list.push_back({std::string("linear_dx/") + p.name, "linear_dx", {}, {y, w}, {x}, flops});
    list.push_back({std::string("linear_dw/") + p.name, "linear_dw", {}, {y, x}, {w}, flops});
  }
  list.push_back({"linear_cross_entropy",
                  "linear_cross_entropy",
                  {{"grad", int64_t{1}}},
                  {f32({kT, kD}), f32({kV, kD}), i32({kT}), {DType::f64, {1}}},
                  {{DType::f64, {1}}, f32({kT, kD}), f32({kV, kD})},
                  6.0 * kT * kD * kV});
  const TensorType q = f32({kT, kH, kHead}), k = f32({kT, kG, kHead}), pos = i32({kT}),
                   lse = f32({kT, kH});
  const Attrs scale{{"scale", 0.125}, {"group", kH / kG}};
  const double causal = kT * (kSeq + 1) / 2.0 * kH * kHead;
  list.push_back({"attention", "attention", scale, {q, k, k, pos}, {q, lse}, 4 * causal});
  list.push_back(
      {"attention_bwd", "attention_bwd", scale, {q, q, k, k, q, lse, pos}, {q, k, k}, 10 * causal});
  Attrs sliding = scale;
  sliding.set("window", kWindow);
  const double seen = kT * (kWindow - kWindow * (kWindow - 1) / 2.0 / kSeq) * kH * kHead;
  list.push_back({"attention/window", "attention", sliding, {q, k, k, pos}, {q, lse}, 4 * seen});
  list.push_back({"attention_bwd/window",
                  "attention_bwd",
                  sliding,
                  {q, q, k, k, q, lse, pos},
                  {q, k, k},
                  10 * seen});
  Attrs capped = scale;
  capped.set("softcap", 50.0);
  list.push_back({"attention/softcap", "attention", capped, {q, k, k, pos}, {q, lse}, 4 * causal});
  list.push_back({"attention_bwd/softcap",
                  "attention_bwd",
                  capped,
                  {q, q, k, k, q, lse, pos},
                  {q, k, k},
                  10 * causal});
  list.push_back({"softmax_merge", "softmax_merge", {}, {q, lse, q, lse}, {q, lse}});
  // The steps of the loss, on the logits of a quarter of the tokens.
  const TensorType z = f32({kT / 4, kV}), per_token = f32({kT / 4}), y = i32({kT / 4});
  const TensorType wide{DType::f64, {kT / 4}}, scalar{DType::f64, {1}};
  const Attrs vocab{{"vocab", kV}};
  list.push_back({"rowmax", "rowmax", {}, {z}, {per_token}});
  list.push_back({"sumexp", "sumexp", {}, {z, per_token}, {wide}});
  list.push_back({"lse_of", "lse_of", {}, {per_token, wide}, {wide}});
  list.push_back({"lse", "lse", {}, {z}, {wide}});
  list.push_back({"pick", "pick", vocab, {z, y}, {per_token}});
  list.push_back({"nll", "nll", {}, {per_token, wide, y, scalar}, {scalar}});
  list.push_back({"softcap", "softcap", {{"cap", 30.0}}, {z}, {z}});
  list.push_back({"softcap_bwd", "softcap_bwd", {{"cap", 30.0}}, {z, z}, {z}});
  list.push_back({"dlogits", "dlogits", vocab, {z, y, wide, scalar}, {z}});
  const TensorType x = f32({kT, kD}), g = f32({kD}), rstd = f32({kT});
  list.push_back({"rms_norm", "rms_norm", {{"eps", 1e-6}}, {x, g}, {x, rstd}});
  list.push_back({"rms_norm_bwd", "rms_norm_bwd", {}, {x, x, g, rstd}, {x, g}});
  list.push_back({"layer_norm", "layer_norm", {{"eps", 1e-6}}, {x, g, g}, {x, rstd, rstd}});
  list.push_back({"layer_norm_bwd", "layer_norm_bwd", {}, {x, x, g, rstd, rstd}, {x, g, g}});
  list.push_back({"bias_add", "bias_add", {}, {x, g}, {x}});
  list.push_back({"bias_add_db", "bias_add_db", {}, {x}, {g}});
  list.push_back({"scale", "scale", {{"factor", 0.5}}, {x}, {x}});
  const TensorType half = f32({kT, kF}), gate_up = f32({kT, 2, kF});
  for (const char* kind : {"gelu", "gelu_tanh"}) {
    const Attrs attrs{{"kind", std::string(kind)}};
    const std::string name = std::string("/") + kind;
    list.push_back({"activation" + name, "activation", attrs, {half}, {half}});
    list.push_back({"activation_bwd" + name, "activation_bwd", attrs, {half, half}, {half}});
  }
  for (const char* approximate : {"none", "tanh"}) {
    const Attrs attrs{{"approximate", std::string(approximate)}};
    const std::string name = std::string("/") + approximate;
    list.push_back({"geglu" + name, "geglu", attrs, {gate_up}, {half}});
    list.push_back({"geglu_bwd" + name, "geglu_bwd", attrs, {half, gate_up}, {gate_up}});
  }
  const Attrs rope{
      {"theta", 10000.0}, {"inverse", int64_t{0}}, {"scaling", std::string("default")}};
  list.push_back({"rope/q", "rope", rope, {q, pos}, {q}});
  list.push_back({"rope/k", "rope", rope, {k, pos}, {k}});
  list.push_back({"swiglu", "swiglu", {}, {f32({kT, 2, kF})}, {f32({kT, kF})}});
  list.push_back(
      {"swiglu_bwd", "swiglu_bwd", {}, {f32({kT, kF}), f32({kT, 2, kF})}, {f32({kT, 2, kF})}});
  list.push_back({"add", "add", {}, {x, x}, {x}});
  for (DType to : {DType::bf16, DType::f8_e4m3}) {
    list.push_back({std::string("cast/") + to_string(to),
                    "cast",
                    {{"dtype", std::string(to_string(to))}},
                    {x},
                    {{to, x.dims}}});
  }
  list.push_back({"maximum", "maximum", {}, {x, x}, {x}});
  list.push_back({"embedding", "embedding", {{"vocab", kV}}, {i32({kT}), f32({kV, kD})}, {x}});
  list.push_back(
      {"embedding_dw", "embedding_dw", {{"vocab", kV}}, {i32({kT}), x}, {f32({kV, kD})}});
  const TensorType w = f32({kV, kD});
  list.push_back({"sumsq", "sumsq", {}, {w}, {{DType::f64, {1}}}});
  list.push_back({"adamw",
                  "adamw",
                  {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}},
                  {w, w, w, w, {DType::f64, {1}}, {DType::f64, {3}}},
                  {w, w, w},
                  0,
                  0,
                  {{0, 0}, {2, 1}, {3, 2}}});

  const TensorType counts{DType::i64, {kE}}, row_of = i32({kT, kK}), wk = f32({kT, kK});
  const TensorType probs = f32({kT, kE}), xs = rows({kE, kT, kD});
  const Attrs route{{"top_k", kK}, {"norm", int64_t{1}}, {"has_dpsum", int64_t{1}}};
  list.push_back({"router", "router", route, {probs}, {wk, row_of, probs, f32({kE})}});
  list.push_back({"router_bwd", "router_bwd", route, {wk, row_of, probs, f32({kE})}, {probs}});
  list.push_back({"route_plan", "route_plan", {{"num_experts", kE}}, {row_of}, {counts, row_of}});
  list.push_back({"dispatch", "dispatch", {{"num_experts", kE}}, {x, row_of}, {xs}});
  list.push_back({"dispatch_bwd", "dispatch_bwd", {}, {xs, row_of}, {x}});
  list.push_back({"combine", "combine", {}, {xs, wk, row_of}, {x}});
  list.push_back({"combine_bwd", "combine_bwd", {}, {x, xs, wk, row_of}, {xs, wk}});
  for (bool up : {true, false}) {
    const TensorType a = up ? xs : rows({kE, kT, kFe}), b = up ? rows({kE, kT, 2, kFe}) : xs;
    const TensorType e = up ? f32({kE, 2, kFe, kD}) : f32({kE, kD, kFe});
    const double flops = 2.0 * kT * kK * static_cast<double>(e.numel()) / kE;
    const std::string suffix = up ? "/gate_up" : "/down";
    list.push_back({"grouped_linear" + suffix, "grouped_linear", {}, {a, e, counts}, {b}, flops});
    list.push_back(
        {"grouped_linear_dx" + suffix, "grouped_linear_dx", {}, {b, e, counts}, {a}, flops});
    list.push_back(
        {"grouped_linear_dw" + suffix, "grouped_linear_dw", {}, {b, a, counts}, {e}, flops});
  }
  return list;
}

using Memory = std::unique_ptr<std::byte, decltype(&std::free)>;

Memory allocate(int64_t bytes) {
  return {
      static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>((bytes + 64) / 64 * 64))),
      &std::free};
}

/// Values that suit the operand: small numbers, positions of four documents, rows in token order.
void fill(const Case& c, const TensorType& type, void* data) {
  const int64_t n = type.numel();
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t h = (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u >> 33;
    switch (type.dtype) {
      case DType::f32:
        static_cast<float*>(data)[i] = static_cast<float>(h % 2001) * 1e-3f - 1.0f;
        break;
      case DType::f64:
        static_cast<double*>(data)[i] = 0.5;
        break;
      case DType::i64:
        static_cast<int64_t*>(data)[i] = kT * kK / kE;
        break;
      default:
        static_cast<int32_t*>(data)[i] = static_cast<int32_t>(
            c.op == "linear_cross_entropy" || c.attrs.has("vocab") ? static_cast<int64_t>(h % kV)
            : type.dims.size() == 1                                ? i % kSeq
            : c.op.starts_with("rout")                             ? (i % kK + i / kK * 3) % kE
                                                                   : i * 5 % n);
    }
  }
}

void run(benchmark::State& state, const Case& c, kernels::Backend& backend) {
  const char* threads = std::getenv("HOCKET_BENCH_THREADS");
  backend.enter_thread(threads ? std::atoi(threads) : 2);
  std::vector<Memory> memory;
  std::vector<kernels::TensorRef> in, out;
  int64_t bytes = 0;
  for (const TensorType& t : c.in) {
    memory.push_back(allocate(t.bytes()));
    fill(c, t, memory.back().get());
    in.push_back({memory.back().get(), &t});
    bytes += t.bytes();
  }
  for (size_t i = 0; i < c.out.size(); ++i) {
    memory.push_back(allocate(c.out[i].bytes()));
    std::memset(memory.back().get(), 0, static_cast<size_t>(c.out[i].bytes()));
    out.push_back({memory.back().get(), &c.out[i]});
    for (auto [from, to] : c.inplace) {
      if (to == static_cast<int>(i)) {
        out.back().data = in[from].data;
      }
    }
    bytes += c.out[i].bytes();
  }
  const int64_t workspace_bytes = ops::workspace_bytes(c.op, c.attrs, c.in, c.out);
  Memory workspace = allocate(workspace_bytes);
  const kernels::KernelArgs args{&c.attrs, in, out, c.accumulate, workspace.get(), workspace_bytes};
  const kernels::KernelFn kernel = backend.find(c.op, kernels::Device::cpu, {c.in, c.out});
  for (auto _ : state) {
    kernel(args);
  }
  using benchmark::Counter;
  const double work = c.flops > 0 ? c.flops : static_cast<double>(bytes);
  state.counters[c.flops > 0 ? "GFLOP/s" : "GB/s"] =
      Counter(work * 1e-9, Counter::kIsIterationInvariantRate);
}

/// Registers the cases when the executable starts.
const bool registered = [] {
  for (Case& c : cases()) {
    benchmark::RegisterBenchmark(
        ("kernel/" + c.name).c_str(),
        [c](benchmark::State& state) { run(state, c, *kernels::cpu_backend()); })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
  return true;
}();

}  // namespace
}  // namespace hocket
