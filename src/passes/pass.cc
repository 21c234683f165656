// SPDX-License-Identifier: Apache-2.0
#include "passes/pass.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "passes/finish.h"

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

const char* Pass::level() const {
  if (on_graph) return "graph";
  return on_templates ? "templates" : "program";
}

const Pass& find(std::string_view name) {
  std::string known;
  for (const Pass& pass : all()) {
    if (name == pass.name) return pass;
    known += (known.empty() ? "" : ", ") + std::string(pass.name);
  }
  fail("passes", "unknown pass '{}'; expected one of {}, or {}COMMAND", name, known, kCommand);
}

namespace {

/// Runs a command on the text of a program.
void run_on_text(program::Program& program, const std::string& name) {
  const std::string command = name.substr(kCommand.size());
  const std::string text = run_command(command, program::print(program), name);
  program::Program made = program::parse_program(text, "output of " + name);
  if (made.roles != program.roles || made.ranks_per_node != program.ranks_per_node) {
    fail("output of " + name,
         "has other roles, meshes or nodes than the program that it was given");
  }
  complete(made, "output of " + name, text);
  with_dependencies(made, "output of " + name);  // or says why no memory plan can be made
  program = std::move(made);
}

}  // namespace

Pass resolve(const std::string& name) {
  if (!name.starts_with(kCommand)) return find(name);
  Pass pass = program_pass<NoOptions>(name.c_str(), "a command on the text of the program", false,
                                      {}, nullptr);
  pass.on_program = [name](program::Program& program, const AnyOptions&) {
    try {
      run_on_text(program, name);
    } catch (const Error& error) {
      throw error.with(Error::Code::command);
    }
  };
  return pass;
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

const AnyOptions& PassOptions::of(const Pass& pass) const {
  for (size_t i = 0; i < values_.size(); ++i) {
    if (all()[i].name == pass.name) return values_[i];
  }
  return pass.defaults;  // a command
}

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
    if (const auto* value = std::get_if<std::vector<std::string>*>(&field.target)) {
      return join(**value, ", ");
    }
  }
  fail("passes", "no pass has the option '{}'", key);
}

PassRunner::PassRunner(std::vector<std::string> names, std::vector<std::string> skip,
                       PassOptions options)
    : options_(std::move(options)) {
  for (const std::string& name : skip) {
    resolve(name);  // throws for a name that no pass has
  }
  for (const std::string& name : names) {
    Pass pass = resolve(name);
    if (std::find(skip.begin(), skip.end(), name) == skip.end()) {
      passes_.push_back(std::move(pass));
    }
  }
}

template <typename T, typename F>
void PassRunner::run_level(T& object, F member) {
  for (const Pass& pass : passes_) {
    if (!(pass.*member)) continue;
    auto start = std::chrono::steady_clock::now();
    (pass.*member)(object, options_.of(pass));
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    times_.push_back({pass.name, took.count()});
    log_debug("pass {}: {}", pass.name, human_time(took.count()));
    if (after) {
      after(pass);
    }
  }
}

void PassRunner::run(graph::Graph& graph) { run_level(graph, &Pass::on_graph); }
void PassRunner::run(parallel::Templates& templates) { run_level(templates, &Pass::on_templates); }
void PassRunner::run(program::Program& program) { run_level(program, &Pass::on_program); }

}  // namespace hocket::passes
