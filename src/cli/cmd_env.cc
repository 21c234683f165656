// SPDX-License-Identifier: Apache-2.0
// hocket env
#include <fmt/core.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/verbs.h"
#include "engine/machine.h"
#include "kernels/backend.h"
#include "models/config.h"
#include "ops/op.h"
#include "passes/pass.h"

namespace hocket::cli {

void verb_env(Args& args) {
  struct Options {
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  args.about("this machine, this program, and the kernels that it runs", "");
  args.flag("--json", &o->json, "as JSON");
  args.example("hocket env", "what to put into a bug report");
  args.example("hocket env --json", "the same for a script");
  args.run([o] {
    nlohmann::ordered_json j;
    j["hocket"] = HOCKET_VERSION;
    for (const auto& [key, value] : engine::machine_facts()) j[key] = value;
    const double pages = static_cast<double>(sysconf(_SC_PHYS_PAGES));
    const double memory = pages * static_cast<double>(sysconf(_SC_PAGESIZE));
    j["memory_bytes"] = static_cast<int64_t>(memory);
    j["kernels"] = kernels::cpu_choice();
    j["models"] = models::families();
    std::vector<std::string> names;
    for (const auto& pass : passes::all()) names.push_back(pass.name);
    j["passes"] = names;
    j["ops"] = ops::all().size();
    if (o->json) {
      fmt::print("{}\n", j.dump(2));
      return 0;
    }
    for (const auto& [key, value] : j.items()) {
      std::string shown = value.is_string() ? value.get<std::string>()
                          : value.is_array() ? join(value.get<std::vector<std::string>>(), ", ")
                                             : value.dump();
      if (key == "memory_bytes") shown = human_bytes(memory);
      fmt::print("{:<14} {}\n", key, shown);
    }
    return 0;
  });
}

}  // namespace hocket::cli
