// SPDX-License-Identifier: Apache-2.0
// Chooses among the instruction sets for which the CPU kernels were compiled, once, at the first
// use.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"
#include "kernels/backend.h"
#include "kernels/cpu_table.h"
#include "kernels/signature.h"
#include "kernels/team.h"

namespace hocket::kernels {
namespace {

struct Level {
  const char* name;
  const CpuTable& (*table)();
  bool supported;  ///< by the processor that this runs on, and its operating system
};

/// Most demanding last.
const std::vector<Level>& levels() {
#if defined(__x86_64__)
#define HOCKET_SUPPORTED(name) (__builtin_cpu_supports(name) != 0)
#else
#define HOCKET_SUPPORTED(name) true
#endif
  static const std::vector<Level> all = {
#define LEVEL(space, name) {name, &space::table, HOCKET_SUPPORTED(name)},
#include "kernels/levels.inc"
#undef LEVEL
  };
#undef HOCKET_SUPPORTED
  return all;
}

struct Choice {
  const Level* level;
  std::string why;
};

/// HOCKET_CPU, or the most demanding level that this processor supports.
Choice choose() {
  std::vector<std::string> names, supported;
  const Level* best = nullptr;
  for (const Level& level : levels()) {
    names.push_back(level.name);
    if (level.supported) {
      supported.push_back(level.name);
      best = &level;
    }
  }
  if (!best) {
    fail("kernels", "this processor supports none of {}, for which the kernels were compiled",
         join(names, ", "));
  }
  const char* wanted = std::getenv("HOCKET_CPU");
  if (!wanted || !*wanted) {
    return {best, fmt::format("the best for this processor of {}", join(names, ", "))};
  }
  for (const Level& level : levels()) {
    if (level.name == std::string_view(wanted) && level.supported) {
      return {&level, "HOCKET_CPU says so"};
    }
  }
  fail("kernels", "HOCKET_CPU is '{}'; expected one of {}, which this processor supports", wanted,
       join(supported, ", "));
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const Level& level) : name_(level.name), table_(level.table()) {}

  std::string describe() const override {
    return fmt::format("CPU, {}, {} bytes per vector", name_, table_.vector_bytes);
  }

  KernelFn find(std::string_view op, Device device, const OperandTypes& types) const override {
    const auto at = std::lower_bound(
        table_.kernels.begin(), table_.kernels.end(), op,
        [](const CpuKernel& k, std::string_view name) { return std::string_view(k.op) < name; });
    if (device != Device::cpu || at == table_.kernels.end() || std::string_view(at->op) != op) {
      return nullptr;
    }
    if (at->f32 && takes(at->signature, graph::DType::f32, types)) return at->f32;
    return takes(at->signature, graph::DType::f64, types) ? at->f64 : nullptr;
  }

  void enter_thread(int num_threads) override { set_team_size(num_threads); }

 private:
  const char* name_;
  const CpuTable& table_;
};

const Choice& chosen() {
  static const Choice choice = choose();
  return choice;
}

}  // namespace

std::shared_ptr<Backend> cpu_backend() {
  static const auto backend = std::make_shared<CpuBackend>(*chosen().level);
  return backend;
}

std::string cpu_choice() { return fmt::format("{} ({})", chosen().level->name, chosen().why); }

std::vector<std::shared_ptr<Backend>> cpu_backends() {
  std::vector<std::shared_ptr<Backend>> all;
  for (const Level& level : levels()) {
    if (level.supported) {
      all.push_back(std::make_shared<CpuBackend>(level));
    }
  }
  return all;
}

}  // namespace hocket::kernels
