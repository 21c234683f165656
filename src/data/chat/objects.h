// SPDX-License-Identifier: Apache-2.0
// Objects of a rendering that templates call: macros and the variable `loop`.
#pragma once

#include <optional>

#include "data/chat/evaluator_impl.h"

namespace hocket::data::jinja {

/// A macro or the body of a call block, with the scope of its definition.
class Macro : public Object {
 public:
  Macro(Evaluator* evaluator, const Stmt& definition, ScopePtr scope)
      : evaluator_(evaluator), definition_(definition), scope_(std::move(scope)) {}
  const char* type() const override;
  std::string repr(Budget*, int) const override;
  bool attribute(std::string_view name, Value* out) override;
  // Arguments are bound by place, then by name; a missing one has its default, computed in the
  // macro's own scope from left to right, or is undefined.
  Value call(const Arguments& arguments) override;

 private:
  void set_default(size_t i, const ScopePtr& scope);
  // `named` are those that no parameter took.
  void special_arguments(const Arguments& arguments, Scope* scope,
                         std::vector<std::pair<std::string, Value>>* named, const Value* caller);

  Evaluator* evaluator_;
  const Stmt& definition_;
  ScopePtr scope_;
};

/// Result of cycler(): its items in turn.
class Cycler : public Object {
 public:
  explicit Cycler(Evaluator* evaluator, std::vector<Value> items)
      : evaluator_(evaluator), items_(std::move(items)) {}
  const char* type() const override { return "Cycler"; }
  std::string repr(Budget*, int) const override;
  bool attribute(std::string_view name, Value* out) override;
  Value call(const Arguments& arguments) override;

 private:
  Evaluator* evaluator_;
  std::vector<Value> items_;
  size_t at_ = 0;
};

/// Result of joiner(): nothing when called first, then the separator.
class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  const char* type() const override { return "Joiner"; }
  std::string repr(Budget*, int) const override;
  bool attribute(std::string_view name, Value* out) override;
  Value call(const Arguments& arguments) override;

 private:
  Value separator_;
  bool used_ = false;
};

/// The variable `loop`, which looks one element ahead when asked for the next or last one.
class Loop : public Object {
 public:
  Loop(Evaluator* evaluator, const Stmt& definition, ScopePtr scope, const Value& values, Next next,
       int depth)
      : evaluator_(evaluator),
        definition_(definition),
        scope_(std::move(scope)),
        next_(std::move(next)),
        depth_(depth) {
    if (definition.filter == nullptr) {
      length_ = length_of(values);
    }
  }
  const char* type() const override;
  std::string repr(Budget*, int) const override;
  bool advance(Value* item);
  bool attribute(std::string_view name, Value* out) override;
  Value call(const Arguments& arguments) override;

 private:
  bool peek();
  // Length, for which a generator is read to its end.
  int64_t length();
  Value cycle(const Arguments& arguments) const;
  Value changed(const Arguments& arguments);

  Evaluator* evaluator_;
  const Stmt& definition_;
  ScopePtr scope_;
  Next next_;
  int depth_;
  int64_t index_ = -1;
  std::optional<int64_t> length_;
  bool has_ahead_ = false, ended_ = false;
  Value previous_, current_, ahead_, last_;
};

}  // namespace hocket::data::jinja
