// SPDX-License-Identifier: Apache-2.0
// Passes: rewrites of the graph (between autodiff and lowering), of the templates of a micro-batch
// (before stamping) or of the program (after it), each with a declared effect on numerics. A run
// names its passes in order, and those of each level run in it; any can be skipped. The options of
// a pass are a struct with fields() in its own file; their keys are keys of `plan` in run.yaml.
#pragma once

#include <any>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "graph/graph.h"
#include "parallel/lowering/template.h"
#include "program/program.h"

namespace hocket::passes {

/// The options of one pass, whatever their type.
class AnyOptions {
 public:
  template <HasFields Own>
  explicit AnyOptions(Own own)
      : value_(std::move(own)), fields_([](std::any& value, Fields& fields) {
          std::any_cast<Own&>(value).fields(fields);
        }) {}
  void fields(Fields& to) { fields_(value_, to); }
  template <class Own>
  const Own& as() const {
    return std::any_cast<const Own&>(value_);
  }

 private:
  std::any value_;
  void (*fields_)(std::any&, Fields&);
};
/// Options of a pass without any.
struct NoOptions {
  void fields(Fields&) {}
};

struct Pass {
  std::string name;
  const char* help;
  bool same_numerics;  ///< results are bit-identical with and without it
  /// Settings "key=value" with which the generic tests run the pass. At least one changes the
  /// lowering of a small plan.
  std::vector<std::string> samples;
  AnyOptions defaults;
  /// Exactly one is set.
  std::function<void(graph::Graph&, const AnyOptions&)> on_graph = nullptr;
  std::function<void(parallel::Templates&, const AnyOptions&)> on_templates = nullptr;
  std::function<void(program::Program&, const AnyOptions&)> on_program = nullptr;
  /// "graph", "templates" or "program".
  const char* level() const;
};
/// The pass that rewrites an `Object` by `run`.
template <class Object, HasFields Own>
Pass make_pass(std::function<void(Object&, const AnyOptions&)> Pass::*level, const char* name,
               const char* help, bool same_numerics, std::vector<std::string> samples,
               void (*run)(Object&, const Own&)) {
  Pass pass{name, help, same_numerics, std::move(samples), AnyOptions(Own{})};
  pass.*
      level = [run](Object& object, const AnyOptions& options) { run(object, options.as<Own>()); };
  return pass;
}
template <HasFields Own>
Pass graph_pass(const char* name, const char* help, bool same_numerics,
                std::vector<std::string> samples, void (*run)(graph::Graph&, const Own&)) {
  return make_pass(&Pass::on_graph, name, help, same_numerics, std::move(samples), run);
}
template <HasFields Own>
Pass templates_pass(const char* name, const char* help, bool same_numerics,
                    std::vector<std::string> samples,
                    void (*run)(parallel::Templates&, const Own&)) {
  return make_pass(&Pass::on_templates, name, help, same_numerics, std::move(samples), run);
}
template <HasFields Own>
Pass program_pass(const char* name, const char* help, bool same_numerics,
                  std::vector<std::string> samples, void (*run)(program::Program&, const Own&)) {
  return make_pass(&Pass::on_program, name, help, same_numerics, std::move(samples), run);
}

const std::vector<Pass>& all();
/// Throws Error naming all passes.
const Pass& find(std::string_view name);
/// A pass of a run: one of all(), or a command, `exec:COMMAND`. It reads a program's text, before
/// memory is planned, on standard input, and writes that of another program of the same mesh.
/// Throws Error for a name that no pass has.
Pass resolve(const std::string& name);
inline constexpr std::string_view kCommand = "exec:";

/// The options of all passes.
class PassOptions {
 public:
  /// Sets the defaults, but for these settings "key=value". Throws Error for a key that no pass
  /// has.
  explicit PassOptions(const std::vector<std::string>& settings = {});
  /// The keys of all passes, in the order of passes.inc.
  void fields(Fields& to);
  const AnyOptions& of(const Pass& pass) const;
  /// The value of a key as people read it. Throws Error if no pass has the key.
  std::string text(std::string_view key) const;

 private:
  std::vector<AnyOptions> values_;  ///< as all()
};

struct PassTime {
  std::string name;
  double seconds = 0;
};

/// Runs passes of one level by name, in order. `after` is called after each (dump, check).
class PassRunner {
 public:
  PassRunner(std::vector<std::string> names, std::vector<std::string> skip, PassOptions options);
  std::function<void(const Pass&)> after;
  void run(graph::Graph& graph);
  void run(parallel::Templates& templates);
  void run(program::Program& program);
  const std::vector<PassTime>& times() const { return times_; }

 private:
  template <typename T, typename F>
  void run_level(T& object, F member);
  std::vector<Pass> passes_;
  PassOptions options_;
  std::vector<PassTime> times_;
};

}  // namespace hocket::passes
