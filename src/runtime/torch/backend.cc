// SPDX-License-Identifier: Apache-2.0
// The LibTorch CPU backend: finds kernels by op and dtype, sets the calling thread up, and routes
// what ATen allocates during a kernel into that task's workspace.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <omp.h>

#include <map>
#include <string>

#include "kernels/kernels.h"
#include "kernels/vec.h"
#include "runtime/torch/workspace_allocator.h"

extern "C" const char* hocket_torch_version();  // from the build: LibTorch's version

namespace hocket::runtime {
namespace {

/// A kernel behind the scope that names it in errors and owns its workspace.
template <KernelFn fn>
struct Entry {
  static const char* name;
  static void call(const KernelArgs& args) {
    KernelScope scope(name, args.workspace, args.workspace_bytes);
    fn(args);
  }
};

#define X(op)                                                      \
  template <>                                                      \
  const char* Entry<&kernels::op<float>>::name = #op;              \
  template <>                                                      \
  const char* Entry<&kernels::op<double>>::name = #op;
#include "kernels/kernels.inc"
#undef X

struct Kernels {
  KernelFn f32, f64;
};

const std::map<std::string, Kernels, std::less<>>& table() {
  static const std::map<std::string, Kernels, std::less<>> t = {
#define X(op) {#op, {&Entry<&kernels::op<float>>::call, &Entry<&kernels::op<double>>::call}},
#include "kernels/kernels.inc"
#undef X
  };
  return t;
}

class TorchBackend final : public Backend {
 public:
  TorchBackend() { install_workspace_allocator(); }

  std::string describe() const override {
    return fmt::format("LibTorch {} CPU, {} bytes per vector, {} threads", hocket_torch_version(),
                       kernels::kVecBytes, omp_get_max_threads());
  }

  /// Ops without floating-point operands (copy, zero, route_plan, ...) are found for every dtype.
  KernelFn find(std::string_view op, Device device, graph::DType dtype) const override {
    auto it = table().find(op);
    if (device != Device::cpu || it == table().end()) return nullptr;
    if (dtype == graph::DType::f64) return it->second.f64;
    if (dtype == graph::DType::f32) return it->second.f32;
    static constexpr std::string_view kAny[] = {"copy", "zero", "route_plan", "clip_coef"};
    for (std::string_view any : kAny)
      if (op == any) return it->second.f32;
    return nullptr;
  }

  void enter_thread(int num_threads) override {
    at::set_num_threads(num_threads);  // of this thread: OpenMP's count is per thread
    thread_local c10::InferenceMode no_autograd;
  }

  int64_t stray_allocations() const override { return runtime::stray_allocations(); }
};

}  // namespace
}  // namespace hocket::runtime

extern "C" hocket::runtime::Backend* hocket_create_backend() {
  return new hocket::runtime::TorchBackend();
}
