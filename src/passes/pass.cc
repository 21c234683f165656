// SPDX-License-Identifier: Apache-2.0
#include "passes/pass.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace hocket::passes {

#define HOCKET_PASS(name) Pass pass_##name();
#include "passes/passes.inc"
#undef HOCKET_PASS

const std::vector<Pass>& all() {
  static const std::vector<Pass> list = {
#define HOCKET_PASS(name) pass_##name(),
#include "passes/passes.inc"
#undef HOCKET_PASS
  };
  return list;
}

const Pass& find(std::string_view name) {
  std::string known;
  for (const Pass& pass : all()) {
    if (name == pass.name) return pass;
    known += (known.empty() ? "" : ", ") + std::string(pass.name);
  }
  fail("passes", "unknown pass '{}'; expected one of {}", name, known);
}

PassOptions::PassOptions(const std::vector<std::string>& settings) {
  for (const Pass& pass : all()) {
    values_.push_back(pass.defaults);
  }
  if (!settings.empty()) {
    parse_config(*this, "{}", "passes", settings);
  }
}

void PassOptions::fields(Fields& to) {
  for (AnyOptions& options : values_) {
    options.fields(to);
  }
}

const AnyOptions& PassOptions::of(const Pass& pass) const { return values_[&pass - all().data()]; }

std::string PassOptions::text(std::string_view key) const {
  PassOptions copy = *this;  // fields() is for writing as well
  Fields fields;
  copy.fields(fields);
  for (const Field& field : fields.list()) {
    if (field.name != key) continue;
    if (const auto* value = std::get_if<std::string*>(&field.target)) return **value;
    if (const auto* value = std::get_if<double*>(&field.target)) return fmt::format("{}", **value);
    if (const auto* value = std::get_if<int64_t*>(&field.target)) return fmt::format("{}", **value);
    if (const auto* value = std::get_if<bool*>(&field.target)) return **value ? "true" : "false";
  }
  fail("passes", "no pass has the option '{}'", key);
}

PassRunner::PassRunner(std::vector<std::string> names, std::vector<std::string> skip,
                       PassOptions options)
    : options_(std::move(options)) {
  for (const std::string& name : skip) {
    find(name);  // throws for a name that no pass has
  }
  for (const std::string& name : names) {
    if (const Pass& pass = find(name); std::find(skip.begin(), skip.end(), name) == skip.end()) {
      passes_.push_back(&pass);
    }
  }
}

template <typename T, typename F>
void PassRunner::run_level(T& object, F member) {
  for (const Pass* pass : passes_) {
    if (!(pass->*member)) continue;
    auto start = std::chrono::steady_clock::now();
    (pass->*member)(object, options_.of(*pass));
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    times_.push_back({pass->name, took.count()});
    log_debug("pass {}: {}", pass->name, human_time(took.count()));
    if (after) {
      after(*pass);
    }
  }
}

void PassRunner::run(graph::Graph& graph) { run_level(graph, &Pass::on_graph); }
void PassRunner::run(program::Program& program) { run_level(program, &Pass::on_program); }

}  // namespace hocket::passes
