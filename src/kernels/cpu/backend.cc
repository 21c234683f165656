// SPDX-License-Identifier: Apache-2.0
#include "kernels/backend.h"

#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vec.h"

namespace hocket::kernels {
namespace cpu {
namespace {

/// All kernels here read dense operands that begin at index 0 of their letters.
void refuse_views(const KernelArgs& args) {
  for (const auto list : {args.in, args.out}) {
    for (const TensorRef& operand : list) {
      if (operand.strides) {
        fail_run("kernel", "got strides for operand {}; expected it without gaps",
                 to_string(*operand.type));
      }
    }
  }
  if (!args.begins.empty()) {
    fail_run("kernel", "got a piece that begins at {} of letter '{}'; expected it to begin at 0",
             args.begins[0].index, args.begins[0].letter);
  }
}

template <KernelFn kernel>
void call(const KernelArgs& args) {
  refuse_views(args);
  kernel(args);
}

enum class Operands { floats, any };

struct Row {
  Operands operands;
  KernelFn f32, f64;
};

const std::map<std::string, Row, std::less<>>& table() {
  static const std::map<std::string, Row, std::less<>> rows = {
#define X(op, operands) {#op, {Operands::operands, &call<&cpu::op<float>>, &call<&cpu::op<double>>}},
#include "kernels/cpu/kernels.inc"
#undef X
  };
  return rows;
}

class CpuBackend final : public Backend {
 public:
  std::string describe() const override {
    return fmt::format("CPU kernels, {} bytes per vector", kVecBytes);
  }

  KernelFn find(std::string_view op, Device device, const OperandTypes& types) const override {
    const auto row = table().find(op);
    if (device != Device::cpu || row == table().end()) {
      return nullptr;
    }
    if (row->second.operands == Operands::any) {
      return row->second.f32;
    }
    const auto dtype = graph::compute_dtype(types.in, types.out);
    return dtype == graph::DType::f32   ? row->second.f32
           : dtype == graph::DType::f64 ? row->second.f64
                                        : nullptr;
  }

  void enter_thread(int num_threads) override { set_team_size(num_threads); }
};

}  // namespace
}  // namespace cpu

std::shared_ptr<Backend> cpu_backend() {
  static const auto backend = std::make_shared<cpu::CpuBackend>();
  return backend;
}

}  // namespace hocket::kernels
