// SPDX-License-Identifier: Apache-2.0
#include "data/chat/objects.h"

#include <algorithm>
#include <utility>

#include "data/chat/operations.h"

namespace hocket::data::jinja {

const char* Macro::type() const { return "Macro"; }

std::string Macro::repr(Budget*, int) const {
  return definition_.text.empty() ? "<Macro 'caller'>"
                                  : fmt::format("<Macro {}>", repr_of_text(definition_.text));
}

bool Macro::attribute(std::string_view name, Value* out) {
  const Signature& signature = definition_.signature;
  if (name == "name") {
    *out = Value::text(definition_.text);
  } else if (name == "arguments") {
    std::vector<Value> names;
    for (const auto& argument : signature.names) {
      names.push_back(Value::text(std::string(argument)));
    }
    *out = Value::list(std::move(names), List::Kind::tuple);
  } else if (name == "catch_kwargs" || name == "catch_varargs" || name == "caller") {
    *out = Value::boolean(name == "caller"         ? signature.uses_caller
                          : name == "catch_kwargs" ? signature.uses_kwargs
                                                   : signature.uses_varargs);
  } else {
    return false;
  }
  return true;
}

std::string Cycler::repr(Budget*, int) const {
  refuse("prints a cycler, whose text in Python is an address");
}

bool Cycler::attribute(std::string_view name, Value* out) {
  if (name == "current") {
    *out = items_[at_];
    return true;
  }
  if (name != "next" && name != "reset") return false;
  const bool moves = name == "next";
  *out = Value::object(
      evaluator_->make<Builtin>(std::string(name), [this, moves](const Arguments& arguments) {
        const Bound none("cycler", arguments, {});
        if (!moves) {
          at_ = 0;
          return Value::none();
        }
        const Value item = items_[at_];
        at_ = (at_ + 1) % items_.size();
        return item;
      }));
  return true;
}

Value Cycler::call(const Arguments&) { refuse("'Cycler' object is not callable"); }

std::string Joiner::repr(Budget*, int) const {
  refuse("prints a joiner, whose text in Python is an address");
}

bool Joiner::attribute(std::string_view name, Value* out) {
  if (name == "sep" || name == "used") {
    *out = name == "sep" ? separator_ : Value::boolean(used_);
  }
  return name == "sep" || name == "used";
}

Value Joiner::call(const Arguments& arguments) {
  const Bound none("joiner", arguments, {});
  return std::exchange(used_, true) ? separator_ : Value::text("");
}

// Arguments are bound by place, then by name; a missing one has its default, computed in the
// macro's own scope from left to right, or is undefined.
Value Macro::call(const Arguments& arguments) {
  const Signature& signature = definition_.signature;
  const auto scope = std::make_shared<Scope>(scope_);
  std::vector<std::pair<std::string, Value>> named = arguments.named;
  // Moves the argument of that name, if there is one, out of `named`.
  const auto take = [&](std::string_view name, Value* value) {
    const auto found = std::find_if(named.begin(), named.end(),
                                    [&](const auto& other) { return other.first == name; });
    if (found == named.end()) return false;
    *value = std::move(found->second);
    named.erase(found);
    return true;
  };
  Value value;
  for (size_t i = 0; i < signature.names.size(); ++i) {
    evaluator_->budget_.steps(1 + std::ssize(named) / 16 + std::ssize(scope->variables) / 16);
    if (i < arguments.positional.size()) {
      scope->set(signature.ids[i], arguments.positional[i]);
    } else if (take(signature.names[i], &value)) {
      scope->set(signature.ids[i], std::move(value));
    }
  }
  special_arguments(arguments, scope.get(), &named, take("caller", &value) ? &value : nullptr);
  for (size_t i = arguments.positional.size(); i < signature.names.size(); ++i) {
    set_default(i, scope);
  }
  Evaluator::Capture capture(evaluator_);
  evaluator_->execute(definition_.body, scope);
  return capture.value();
}

void Macro::set_default(size_t i, const ScopePtr& scope) {
  const Signature& signature = definition_.signature;
  const auto own = [&](const auto& variable) { return variable.first == signature.ids[i]; };
  if (std::any_of(scope->variables.begin(), scope->variables.end(), own)) return;
  const size_t without = signature.names.size() - signature.defaults.size();
  scope->set(signature.ids[i], i < without
                                   ? Value::undefined(fmt::format("parameter '{}' was not provided",
                                                                  signature.names[i]))
                                   : evaluator_->evaluate(*signature.defaults[i - without], scope));
}

// `named` are those that no parameter took.
void Macro::special_arguments(const Arguments& arguments, Scope* scope,
                              std::vector<std::pair<std::string, Value>>* named,
                              const Value* caller) {
  const Signature& signature = definition_.signature;
  if (signature.uses_caller) {
    scope->set(evaluator_->caller_,
               caller != nullptr ? *caller : Value::undefined("No caller defined"));
  } else if (caller != nullptr) {
    named->emplace_back("caller", *caller);
  }
  if (signature.uses_kwargs) {
    scope->set(evaluator_->kwargs_, evaluator_->make_dict({{}, *named}));
  } else if (!named->empty()) {
    refuse("macro {} takes no keyword argument {}", repr_of_text(definition_.text),
           repr_of_text(named->front().first));
  }
  const auto count =
      static_cast<ptrdiff_t>(std::min(arguments.positional.size(), signature.names.size()));
  std::vector<Value> rest(arguments.positional.begin() + count, arguments.positional.end());
  if (signature.uses_varargs) {
    scope->set(evaluator_->varargs_, Value::list(std::move(rest), List::Kind::tuple));
  } else if (!rest.empty()) {
    refuse("macro {} takes not more than {} argument(s)", repr_of_text(definition_.text),
           signature.names.size());
  }
}

const char* Loop::type() const { return "LoopContext"; }

std::string Loop::repr(Budget*, int) const { refuse("prints 'loop'; expected an attribute of it"); }

bool Loop::advance(Value* item) {
  if (has_ahead_) {
    *item = std::move(ahead_);
    has_ahead_ = false;
  } else if (ended_ || !next_(item)) {
    return false;
  }
  ++index_;
  previous_ = std::move(current_);
  current_ = *item;
  return true;
}

bool Loop::attribute(std::string_view name, Value* out) {
  if (name == "index0") {
    *out = Value::integer(index_);
  } else if (name == "index") {
    *out = Value::integer(index_ + 1);
  } else if (name == "first") {
    *out = Value::boolean(index_ == 0);
  } else if (name == "last") {
    *out = Value::boolean(!peek());
  } else if (name == "length") {
    *out = Value::integer(length());
  } else if (name == "revindex") {
    *out = Value::integer(length() - index_);
  } else if (name == "revindex0") {
    *out = Value::integer(length() - index_ - 1);
  } else if (name == "depth") {
    *out = Value::integer(depth_ + 1);
  } else if (name == "depth0") {
    *out = Value::integer(depth_);
  } else if (name == "previtem") {
    *out = index_ > 0 ? previous_ : Value::undefined("there is no previous item");
  } else if (name == "nextitem") {
    *out = peek() ? ahead_ : Value::undefined("there is no next item");
  } else if (name == "cycle" || name == "changed") {
    const bool cycles = name == "cycle";
    *out =
        Value::object(evaluator_->make<Builtin>(std::string(name), [=, this](const Arguments& a) {
          return cycles ? cycle(a) : changed(a);
        }));
  } else {
    return false;
  }
  return true;
}

Value Loop::call(const Arguments& arguments) {
  if (!definition_.recursive) {
    refuse("The loop must have the 'recursive' marker to be called recursively.");
  }
  const Bound bound("loop()", arguments, {"iterable"});
  Evaluator::Capture capture(evaluator_);
  evaluator_->loop(definition_, scope_, bound.at(0), depth_ + 1);
  return capture.value();
}

bool Loop::peek() {
  if (!has_ahead_ && !ended_) {
    has_ahead_ = next_(&ahead_);
    ended_ = !has_ahead_;
  }
  return has_ahead_;
}

// Length, for which a generator is read to its end.
int64_t Loop::length() {
  if (!length_) {
    std::vector<Value> rest;
    for (Value item; !ended_ && next_(&item);) {
      evaluator_->budget_.bytes(static_cast<int64_t>(sizeof(Value)));
      rest.push_back(std::move(item));
    }
    length_ = std::ssize(rest) + index_ + 1 + (has_ahead_ ? 1 : 0);
    const Value list = Value::list(std::move(rest));
    next_ = iterate(&evaluator_->budget_, list);
    ended_ = false;
  }
  return *length_;
}

Value Loop::cycle(const Arguments& arguments) const {
  if (arguments.positional.empty()) refuse("no items for cycling given");
  const auto at = static_cast<size_t>(index_) % arguments.positional.size();
  return arguments.positional[at];
}

Value Loop::changed(const Arguments& arguments) {
  const Value now = Value::list(arguments.positional, List::Kind::tuple);
  const bool same = !last_.is_undefined() && equal(&evaluator_->budget_, last_, now);
  last_ = now;
  return Value::boolean(!same);
}

Value Evaluator::make_macro(const Stmt& statement, const ScopePtr& scope) {
  return Value::object(make<Macro>(this, statement, scope));
}

}  // namespace hocket::data::jinja
