// SPDX-License-Identifier: Apache-2.0
// Implements: cpu_backend (backend.h). Chooses among the instruction sets for which the CPU kernels
// were compiled, once, at the first use.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"
#include "kernels/backend.h"
#include "kernels/cpu_table.h"
#include "kernels/signature.h"
#include "kernels/team.h"

namespace hocket::kernels {
namespace {

struct InstructionSet {
  const char* name;
  const CpuTable& (*table)();
  bool supported;  ///< by the processor that this runs on, and its operating system
};

/// Most demanding last.
const std::vector<InstructionSet>& instruction_sets() {
#if defined(__x86_64__)
#define HOCKET_SUPPORTED(name) (__builtin_cpu_supports(name) != 0)
#else
#define HOCKET_SUPPORTED(name) true
#endif
  static const std::vector<InstructionSet> all = {
#define LEVEL(space, name) {name, &space::table, HOCKET_SUPPORTED(name)},
#include "kernels/levels.inc"
#undef LEVEL
  };
#undef HOCKET_SUPPORTED
  return all;
}

struct InstructionSetChoice {
  const InstructionSet* level;
  std::string why;
};

/// HOCKET_CPU, or the most demanding level that this processor supports.
InstructionSetChoice choose() {
  std::vector<std::string> names, supported;
  const InstructionSet* best = nullptr;
  for (const InstructionSet& level : instruction_sets()) {
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
  for (const InstructionSet& level : instruction_sets()) {
    if (level.name == std::string_view(wanted) && level.supported) {
      return {&level, "HOCKET_CPU says so"};
    }
  }
  fail("kernels", "HOCKET_CPU is '{}'; expected one of {}, which this processor supports", wanted,
       join(supported, ", "));
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const InstructionSet& level) : level_(&level) {}

  std::string describe() const override {
    const InstructionSet& level = *level_.load();
    return fmt::format("CPU, {}, {} bytes per vector", level.name, level.table().vector_bytes);
  }

  KernelFn find(std::string_view op, Device device, const OperandTypes& types) const override {
    if (device != Device::cpu) return nullptr;
    const std::span<const CpuKernel> kernels = level_.load()->table().kernels;
    auto at = std::lower_bound(
        kernels.begin(), kernels.end(), op,
        [](const CpuKernel& k, std::string_view name) { return std::string_view(k.op) < name; });
    for (; at != kernels.end() && std::string_view(at->op) == op; ++at) {
      if (takes(at->signature, at->dtype, types)) return at->kernel;
    }
    return nullptr;
  }

  void enter_thread(int num_threads) override { set_team_size(num_threads); }

  const InstructionSet& level() const { return *level_; }
  void use(const InstructionSet& level) { level_ = &level; }

 private:
  std::atomic<const InstructionSet*> level_;
};

const InstructionSetChoice& chosen() {
  static const InstructionSetChoice choice = choose();
  return choice;
}

/// The one that all programs of this process run on.
const std::shared_ptr<CpuBackend>& the_backend() {
  static const auto backend = std::make_shared<CpuBackend>(*chosen().level);
  return backend;
}

}  // namespace

std::shared_ptr<Backend> cpu_backend() { return the_backend(); }

std::string cpu_level() { return the_backend()->level().name; }

bool use_cpu_level(std::string_view name) {
  const char* const wanted = std::getenv("HOCKET_CPU");
  for (const InstructionSet& level : instruction_sets()) {
    if (level.name != name) continue;
    if (&level == &the_backend()->level()) return true;
    if (!level.supported || (wanted && *wanted)) return false;
    the_backend()->use(level);
    return true;
  }
  return false;
}

std::string cpu_choice() { return fmt::format("{} ({})", chosen().level->name, chosen().why); }

std::vector<std::shared_ptr<Backend>> cpu_backends() {
  std::vector<std::shared_ptr<Backend>> all;
  for (const InstructionSet& level : instruction_sets()) {
    if (level.supported) {
      all.push_back(std::make_shared<CpuBackend>(level));
    }
  }
  return all;
}

}  // namespace hocket::kernels
