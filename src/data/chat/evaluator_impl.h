// SPDX-License-Identifier: Apache-2.0
// State of one rendering, for the files that implement it: evaluator.cc (statements and
// expressions), functions.cc (functions of templates), objects.cc (macros and `loop`).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/chat/evaluator.h"
#include "data/chat/operations.h"

namespace hocket::data::jinja {

/// Variables of a block, by the number of their names.
struct Scope {
  explicit Scope(std::shared_ptr<Scope> parent) : outer(std::move(parent)) {}
  const Value* find(Budget* budget, int name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer.get()) {
      budget->steps(std::ssize(scope->variables) / 16);
      for (const auto& [own, value] : scope->variables) {
        if (own == name) return &value;
      }
    }
    return nullptr;
  }
  void set(int name, Value value) {
    for (auto& [own, old] : variables) {
      if (own == name) {
        old = std::move(value);
        return;
      }
    }
    variables.emplace_back(name, std::move(value));
  }

  std::shared_ptr<Scope> outer;
  std::vector<std::pair<int, Value>> variables;
};
using ScopePtr = std::shared_ptr<Scope>;

enum class Flow { normal, break_loop, continue_loop };

/// A namespace(), the only value that changes.
class Namespace : public Object {
 public:
  const char* type() const override { return "Namespace"; }
  bool callable() const override { return false; }
  Value call(const Arguments&) override { refuse("'Namespace' object is not callable"); }
  bool attribute(std::string_view name, Value* out) override {
    const Value* found = attributes_.find(name);
    if (found != nullptr) {
      *out = *found;
    }
    return found != nullptr;
  }
  void set(Budget* budget, const Value& name, Value value) {
    if (!name.is_text()) refuse("a namespace expects names, not {}", type_name(name));
    if (name.as_text().starts_with('_')) {
      refuse("a namespace cannot store the attribute '{}'", name.as_text());
    }
    attributes_.set(budget, name, std::move(value));
  }
  std::string repr(Budget* budget, int depth) const override {
    std::string out = "<Namespace {";
    for (const auto& [name, value] : attributes_.items) {
      out += fmt::format("{}{}: {}", out.ends_with('{') ? "" : ", ", repr_of_text(name.as_text()),
                         to_repr(budget, value, depth));
    }
    budget->bytes(static_cast<int64_t>(out.size()));
    return out + "}>";
  }

 private:
  Dict attributes_;
};

/// A function that templates call.
class Builtin : public Object {
 public:
  using Function = std::function<Value(const Arguments&)>;
  Builtin(std::string name, Function function)
      : name_(std::move(name)), function_(std::move(function)) {}
  const char* type() const override { return "function"; }
  std::string repr(Budget*, int) const override { refuse("prints the function '{}'", name_); }
  Value call(const Arguments& arguments) override { return function_(arguments); }

 private:
  std::string name_;
  Function function_;
};

class Loop;

class Evaluator {
 public:
  Evaluator(const Program& program, const EvaluatorOptions& options);
  Rendered run(const std::vector<std::pair<std::string, Value>>& variables);

 private:
  friend class Macro;
  friend class Loop;
  friend class Cycler;

  // Limits the native stack: every level of statements and expressions holds one.
  class Deeper {
   public:
    explicit Deeper(Evaluator* evaluator) : evaluator_(evaluator) {
      if (++evaluator_->depth_ > evaluator_->options_.limits.max_depth) {
        --evaluator_->depth_;
        refuse("nests calls deeper than a chat template may");
      }
    }
    ~Deeper() { --evaluator_->depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Evaluator* evaluator_;
  };

  // Output of a macro or block that is a value first, before it is printed.
  class Capture {
   public:
    explicit Capture(Evaluator* evaluator) : evaluator_(evaluator), outer_(evaluator->out_) {
      evaluator_->out_ = &text_;
      ++evaluator_->captures_;
    }
    ~Capture() {
      evaluator_->out_ = outer_;
      --evaluator_->captures_;
    }
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;
    Value value() { return Value::text(std::move(text_)); }

   private:
    Evaluator* evaluator_;
    std::string* outer_;
    std::string text_;
  };

  int id(std::string_view name) const;
  void print(std::string_view text);
  template <class T, class... Args>
  T* make(Args&&... args) {
    budget_.bytes(static_cast<int64_t>(sizeof(T)));
    auto made = std::make_unique<T>(std::forward<Args>(args)...);
    T* out = made.get();
    objects_.push_back(std::move(made));
    return out;
  }

  void define_globals(Scope* scope);
  Value make_dict(const Arguments& arguments);
  Value make_namespace(const Arguments& arguments);
  Value make_range(const Arguments& arguments);
  Value make_cycler(const Arguments& arguments);
  Value make_joiner(const Arguments& arguments);
  Value raise_exception(const Arguments& arguments);
  Value strftime_now(const Arguments& arguments);

  Flow execute(const Block& block, const ScopePtr& scope);
  Flow execute(const Stmt& statement, const ScopePtr& scope);
  Flow conditional(const Stmt& statement, const ScopePtr& scope);
  void generation(const Stmt& statement, const ScopePtr& scope);
  Flow captured_block(const Stmt& statement, const ScopePtr& scope, bool assigns);
  void call_block(const Stmt& statement, const ScopePtr& scope);
  void assign(const Target& target, Value value, const ScopePtr& scope);
  /// Runs a loop over `values`; `depth` counts the calls of a recursive one.
  Flow loop(const Stmt& statement, const ScopePtr& scope, const Value& values, int depth);
  Value make_macro(const Stmt& statement, const ScopePtr& scope);

  Value lookup(int name, const ScopePtr& scope);
  Value evaluate(const Expr& expr, const ScopePtr& scope);
  Value binary(const Expr& expr, const ScopePtr& scope);
  static Value positive(const Value& value);
  Value sequence(const Expr& expr, const ScopePtr& scope);
  Value dict(const Expr& expr, const ScopePtr& scope);
  Value concatenated(const Expr& expr, const ScopePtr& scope);
  bool compared(const Expr& expr, const ScopePtr& scope);
  Value condition(const Expr& expr, const ScopePtr& scope);
  Value sliced(const Expr& expr, const ScopePtr& scope);
  // Arguments of a call, filter or test; its first operand is the callee or subject.
  Arguments evaluated_arguments(const Expr& expr, const ScopePtr& scope);
  Value called(const Expr& expr, const ScopePtr& scope);
  /// `block` is the text of a block that is filtered, where the filter has no subject of its own.
  Value filtered(const Expr& expr, const ScopePtr& scope, const Value* block);
  Value tested(const Expr& expr, const ScopePtr& scope);

  const Program& program_;
  const EvaluatorOptions& options_;
  Budget budget_;
  Rendered rendered_;
  std::string* out_ = nullptr;
  int captures_ = 0, depth_ = 0, line_ = 1;
  /// Numbers of names with a meaning; -1 if the template has none of it.
  const int loop_, caller_, varargs_, kwargs_;
  std::vector<std::unique_ptr<Object>> objects_;  ///< values refer to them without owning them
};

}  // namespace hocket::data::jinja
