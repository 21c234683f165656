// SPDX-License-Identifier: Apache-2.0
#include "plan/emit.h"

#include <algorithm>

#include "base/error.h"

namespace hocket::plan {

void refuse_key(const engine::Run& run, const std::string& trainer, const std::string& key,
                const std::string& value, const std::string& expected) {
  fail(run.name, "{} is {}, which {} cannot express; expected {}", key, value, trainer, expected);
}

void expect_expressed(const engine::Run& run, const std::string& trainer,
                      const std::vector<std::string>& expressed) {
  engine::RunConfig copy;
  const ResolvedConfig by_default = parse_config(copy, "{}", "defaults");
  for (const ResolvedConfig::Entry& entry : run.resolved.entries()) {
    if (!entry.path.starts_with("plan.") || entry.origin == "default") continue;
    if (std::find(expressed.begin(), expressed.end(), entry.path) != expressed.end()) continue;
    for (const ResolvedConfig::Entry& other : by_default.entries()) {
      if (other.path == entry.path && other.value != entry.value) {
        refuse_key(run, trainer, entry.path, entry.value, other.value);
      }
    }
  }
}

}  // namespace hocket::plan
