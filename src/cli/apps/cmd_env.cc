// SPDX-License-Identifier: Apache-2.0
// hocket env
#include <fmt/core.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_writer.h"
#include "base/text.h"
#include "cli/verbs.h"
#include "kernels/backend.h"
#include "models/config.h"
#include "ops/op.h"
#include "passes/pass.h"
#include "run/machine.h"

namespace hocket::cli {

namespace {

struct EnvOptions {
  bool json = false;
};

/// Facts of the machine first, then those of the program, under the same names in both forms.
int env(const EnvOptions& options) {
  const double pages = static_cast<double>(sysconf(_SC_PHYS_PAGES));
  const double memory = pages * static_cast<double>(sysconf(_SC_PAGESIZE));
  std::vector<std::string> passes;
  for (const auto& pass : passes::all()) {
    passes.push_back(pass.name);
  }
  if (options.json) {
    JsonWriter json({.indent = 2});
    json.object().member("hocket", HOCKET_VERSION);
    for (const auto& [key, value] : engine::machine_facts()) {
      json.member(key, value);
    }
    json.member("memory_bytes", static_cast<int64_t>(memory))
        .member("kernels", kernels::cpu_choice());
    json.member("models", models::families()).member("passes", passes);
    json.member("ops", ops::all().size()).end();
    fmt::print("{}\n", json.take());
    return 0;
  }
  const auto row = [](std::string_view key, std::string_view value) {
    fmt::print("{:<14} {}\n", key, value);
  };
  row("hocket", HOCKET_VERSION);
  for (const auto& [key, value] : engine::machine_facts()) {
    row(key, value);
  }
  row("memory_bytes", human_bytes(memory));
  row("kernels", kernels::cpu_choice());
  row("models", join(models::families(), ", "));
  row("passes", join(passes, ", "));
  row("ops", fmt::format("{}", ops::all().size()));
  return 0;
}

}  // namespace

void verb_env(Args& args) {
  auto options = std::make_shared<EnvOptions>();
  args.about(
      "this machine, this program, and the kernels that it runs",
      "The kernels are those of the best instruction set for this processor. HOCKET_CPU=x86-64-v3 "
      "in the environment makes every verb take those of that one.");
  args.flag("--json", &options->json, "print as JSON");
  args.example("hocket env", "the facts for a bug report");
  args.example("hocket env --json", "the same for a script");
  args.run([options] { return env(*options); });
}

}  // namespace hocket::cli
