// SPDX-License-Identifier: Apache-2.0
#include "data/chat/evaluator.h"

#include <algorithm>

#include "data/chat/evaluator_impl.h"
#include "data/chat/filters.h"
#include "data/chat/objects.h"
#include "data/chat/python_text.h"

namespace hocket::data::jinja {
namespace {

using Op = Expr::Op;

}  // namespace

Evaluator::Evaluator(const Program& program, const EvaluatorOptions& options)
    : program_(program),
      options_(options),
      budget_(options.limits),
      loop_(id("loop")),
      caller_(id("caller")),
      varargs_(id("varargs")),
      kwargs_(id("kwargs")) {}

Rendered Evaluator::run(const std::vector<std::pair<std::string, Value>>& variables) {
  try {
    const auto globals = std::make_shared<Scope>(nullptr);
    define_globals(globals.get());
    for (const auto& [name, value] : variables) {
      if (const int known = id(name); known >= 0) {
        globals->set(known, value);
      }
    }
    out_ = &rendered_.text;
    const auto scope = std::make_shared<Scope>(globals);
    execute(program_.body, scope);
  } catch (Fault& fault) {
    throw LocatedFault{line_, std::move(fault)};
  }
  return std::move(rendered_);
}

int Evaluator::id(std::string_view name) const {
  const auto found = std::find(program_.names.begin(), program_.names.end(), name);
  return found == program_.names.end() ? -1 : static_cast<int>(found - program_.names.begin());
}

void Evaluator::print(std::string_view text) {
  budget_.bytes(static_cast<int64_t>(text.size()));
  if (static_cast<int64_t>(out_->size() + text.size()) > options_.limits.max_output_bytes) {
    refuse("makes more text than a chat template may");
  }
  *out_ += text;
}

Flow Evaluator::execute(const Block& block, const ScopePtr& scope) {
  for (const StmtPtr& statement : block) {
    if (const Flow flow = execute(*statement, scope); flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Flow Evaluator::execute(const Stmt& statement, const ScopePtr& scope) {
  const Deeper deeper(this);
  budget_.steps();
  line_ = statement.line;
  switch (statement.kind) {
    case Stmt::Kind::text:
      print(statement.text);
      break;
    case Stmt::Kind::output:
      for (const ExprPtr& expr : statement.exprs) {
        print(to_text(&budget_, evaluate(*expr, scope)));
      }
      break;
    case Stmt::Kind::conditional:
      return conditional(statement, scope);
    case Stmt::Kind::loop:
      return loop(statement, scope, evaluate(*statement.exprs[0], scope), 0);
    case Stmt::Kind::set:
      assign(statement.targets[0], evaluate(*statement.exprs[0], scope), scope);
      break;
    case Stmt::Kind::set_block:
      return captured_block(statement, scope, true);
    case Stmt::Kind::filter_block:
      return captured_block(statement, scope, false);
    case Stmt::Kind::macro:
      scope->set(statement.name, make_macro(statement, scope));
      break;
    case Stmt::Kind::call_block:
      call_block(statement, scope);
      break;
    case Stmt::Kind::with: {
      const auto inner = std::make_shared<Scope>(scope);
      for (size_t i = 0; i < statement.targets.size(); ++i) {
        assign(statement.targets[i], evaluate(*statement.exprs[i], scope), inner);
      }
      return execute(statement.body, inner);
    }
    case Stmt::Kind::generation:
      generation(statement, scope);
      break;
    case Stmt::Kind::break_loop:
      return Flow::break_loop;
    case Stmt::Kind::continue_loop:
      return Flow::continue_loop;
  }
  return Flow::normal;
}

Flow Evaluator::conditional(const Stmt& statement, const ScopePtr& scope) {
  for (const Branch& branch : statement.branches) {
    if (branch.test == nullptr || truthy(evaluate(*branch.test, scope))) {
      return execute(branch.body, scope);
    }
  }
  return Flow::normal;
}

void Evaluator::generation(const Stmt& statement, const ScopePtr& scope) {
  const size_t begin = out_->size();
  const auto inner = std::make_shared<Scope>(scope);
  // In transformers the block is a macro's caller, with arguments of its own.
  if (statement.signature.uses_kwargs) {
    inner->set(kwargs_, make_dict({}));
  }
  if (statement.signature.uses_varargs) {
    inner->set(varargs_, Value::list({}, List::Kind::tuple));
  }
  if (statement.signature.uses_caller) {
    inner->set(caller_, Value::undefined("No caller defined"));
  }
  execute(statement.body, inner);
  if (captures_ == 0) {
    rendered_.generation.push_back({begin, out_->size()});
  } else {
    rendered_.lost_generation_line = statement.line;
  }
}

Flow Evaluator::captured_block(const Stmt& statement, const ScopePtr& scope, bool assigns) {
  Value value;
  const auto inner = std::make_shared<Scope>(scope);
  {
    Capture capture(this);
    const Flow flow = execute(statement.body, inner);
    if (flow != Flow::normal) return flow;
    value = capture.value();
  }
  if (statement.filter != nullptr) {
    value = filtered(*statement.filter, inner, &value);
  }
  if (assigns) {
    assign(statement.targets[0], std::move(value), scope);
  } else {
    print(to_text(&budget_, value));
  }
  return Flow::normal;
}

void Evaluator::call_block(const Stmt& statement, const ScopePtr& scope) {
  const Expr& call = *statement.exprs[0];
  const Value callee = evaluate(*call.args[0], scope);
  Arguments arguments = evaluated_arguments(call, scope);
  arguments.named.emplace_back("caller", make_macro(statement, scope));
  line_ = call.line;
  print(to_text(&budget_, call_value(&budget_, callee, arguments)));
}

void Evaluator::assign(const Target& target, Value value, const ScopePtr& scope) {
  if (target.several) {
    std::vector<Value> parts = elements_of(&budget_, value);
    if (parts.size() != target.parts.size()) {
      refuse("{} values to unpack (expected {}, got {})",
             parts.size() < target.parts.size() ? "not enough" : "too many", target.parts.size(),
             parts.size());
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      assign(target.parts[i], std::move(parts[i]), scope);
    }
    return;
  }
  if (target.attribute.empty()) {
    budget_.steps(std::ssize(scope->variables) / 16);
    scope->set(target.name, std::move(value));
    return;
  }
  const Value owner = lookup(target.name, scope);
  auto* space =
      owner.is(Value::Type::object) ? dynamic_cast<Namespace*>(owner.as_object()) : nullptr;
  if (space == nullptr) refuse("cannot assign attribute on non-namespace object");
  space->set(&budget_, Value::text(target.attribute), std::move(value));
}

// Runs a loop, each iteration with a scope of its own. The body of `else` runs if no iteration came
// to its end, so also if the first one breaks, as in jinja2.
Flow Evaluator::loop(const Stmt& statement, const ScopePtr& scope, const Value& values, int depth) {
  const Target& target = statement.targets[0];
  Next next = iterate(&budget_, values);
  if (statement.filter != nullptr) {
    next = [this, &statement, &target, scope, next = std::move(next)](Value* out) {
      for (Value item; next(&item);) {
        const auto inner = std::make_shared<Scope>(scope);
        assign(target, item, inner);
        if (truthy(evaluate(*statement.filter, inner))) {
          *out = std::move(item);
          return true;
        }
      }
      return false;
    };
  }
  Loop* loop = nullptr;
  if (statement.uses_loop) {
    loop = make<Loop>(this, statement, scope, values, next, depth);
  }
  bool ended_one = false;
  for (Value item; loop != nullptr ? loop->advance(&item) : next(&item);) {
    budget_.steps();
    const auto inner = std::make_shared<Scope>(scope);
    assign(target, std::move(item), inner);
    if (loop != nullptr) {
      inner->set(loop_, Value::object(loop));
    }
    const Flow flow = execute(statement.body, inner);
    if (flow == Flow::break_loop) break;
    ended_one |= flow == Flow::normal;
  }
  if (ended_one || statement.otherwise.empty()) return Flow::normal;
  return execute(statement.otherwise, std::make_shared<Scope>(scope));
}

Value Evaluator::lookup(int name, const ScopePtr& scope) {
  if (const Value* found = scope->find(&budget_, name)) return *found;
  return Value::undefined(
      fmt::format("'{}' is undefined", program_.names[static_cast<size_t>(name)]));
}

Value Evaluator::evaluate(const Expr& expr, const ScopePtr& scope) {
  const Deeper deeper(this);
  budget_.steps();
  line_ = expr.line;
  switch (expr.op) {
    case Op::constant:
      return expr.constant;
    case Op::name:
      return lookup(expr.name, scope);
    case Op::list:
    case Op::tuple:
      return sequence(expr, scope);
    case Op::dict:
      return dict(expr, scope);
    case Op::logical_not:
      return Value::boolean(!truthy(evaluate(*expr.args[0], scope)));
    case Op::logical_and:
    case Op::logical_or: {
      Value left = evaluate(*expr.args[0], scope);
      return truthy(left) == (expr.op == Op::logical_or) ? left : evaluate(*expr.args[1], scope);
    }
    case Op::concat:
      return concatenated(expr, scope);
    case Op::compare:
      return Value::boolean(compared(expr, scope));
    case Op::condition:
      return condition(expr, scope);
    case Op::attribute:
      return get_attribute(&budget_, evaluate(*expr.args[0], scope), expr.text);
    case Op::slice:
      return sliced(expr, scope);
    case Op::call:
      return called(expr, scope);
    case Op::filter:
      return filtered(expr, scope, nullptr);
    case Op::test:
      return tested(expr, scope);
    case Op::neg:
      return negate(evaluate(*expr.args[0], scope));
    case Op::pos:
      return positive(evaluate(*expr.args[0], scope));
    default:
      return binary(expr, scope);
  }
}

Value Evaluator::binary(const Expr& expr, const ScopePtr& scope) {
  const Value left = evaluate(*expr.args[0], scope);
  const Value right = evaluate(*expr.args[1], scope);
  line_ = expr.line;
  if (expr.op == Op::item) return get_item(&budget_, left, right);
  return arithmetic(&budget_, expr.op, left, right);
}

Value Evaluator::positive(const Value& value) {
  require_defined(value);
  if (!value.is_number()) refuse("bad operand type for unary +: '{}'", type_name(value));
  return value.is_integral() ? Value::integer(value.as_int()) : value;
}

Value Evaluator::sequence(const Expr& expr, const ScopePtr& scope) {
  std::vector<Value> items;
  budget_.bytes(std::ssize(expr.args) * static_cast<int64_t>(sizeof(Value)));
  for (const ExprPtr& item : expr.args) {
    items.push_back(evaluate(*item, scope));
  }
  return Value::list(std::move(items), expr.op == Op::list ? List::Kind::list : List::Kind::tuple);
}

Value Evaluator::dict(const Expr& expr, const ScopePtr& scope) {
  Dict out;
  for (size_t i = 0; i < expr.args.size(); i += 2) {
    const Value key = evaluate(*expr.args[i], scope);
    out.set(&budget_, key, evaluate(*expr.args[i + 1], scope));
  }
  return Value::dict(std::move(out));
}

Value Evaluator::concatenated(const Expr& expr, const ScopePtr& scope) {
  std::string out;
  for (const ExprPtr& part : expr.args) {
    out += to_text(&budget_, evaluate(*part, scope));
  }
  budget_.bytes(static_cast<int64_t>(out.size()));
  return Value::text(std::move(out));
}

bool Evaluator::compared(const Expr& expr, const ScopePtr& scope) {
  Value left = evaluate(*expr.args[0], scope);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    const std::string& op = expr.operators[i];
    Value right = evaluate(*expr.args[i + 1], scope);
    line_ = expr.line;
    const bool holds = op == "in"       ? contains(&budget_, right, left)
                       : op == "not in" ? !contains(&budget_, right, left)
                                        : compares(&budget_, op, left, right);
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Evaluator::condition(const Expr& expr, const ScopePtr& scope) {
  if (truthy(evaluate(*expr.args[1], scope))) return evaluate(*expr.args[0], scope);
  if (expr.args[2] != nullptr) return evaluate(*expr.args[2], scope);
  return Value::undefined(
      fmt::format("the inline if-expression on line {} evaluated to false and no else section was "
                  "defined.",
                  expr.line));
}

Value Evaluator::sliced(const Expr& expr, const ScopePtr& scope) {
  const Value object = evaluate(*expr.args[0], scope);
  Value bounds[3];
  const Value* given[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    if (expr.args[i + 1] != nullptr) {
      bounds[i] = evaluate(*expr.args[i + 1], scope);
      given[i] = &bounds[i];
    }
  }
  line_ = expr.line;
  return get_slice(&budget_, object, given[0], given[1], given[2]);
}

// Arguments of a call, filter or test; its first operand is the callee or subject.
Arguments Evaluator::evaluated_arguments(const Expr& expr, const ScopePtr& scope) {
  Arguments out;
  for (size_t i = 1; i < expr.args.size(); ++i) {
    out.positional.push_back(evaluate(*expr.args[i], scope));
  }
  for (const auto& [name, value] : expr.named) {
    out.named.emplace_back(name, evaluate(*value, scope));
  }
  if (expr.star != nullptr) {
    for (Value& value : elements_of(&budget_, evaluate(*expr.star, scope))) {
      out.positional.push_back(std::move(value));
    }
  }
  if (expr.star_star != nullptr) {
    const Value more = evaluate(*expr.star_star, scope);
    if (!more.is_dict()) refuse("argument after ** must be a mapping, not {}", type_name(more));
    for (const auto& [key, value] : more.as_dict().items) {
      if (!key.is_text()) refuse("keywords must be strings");
      const auto same = [&](const auto& other) { return other.first == key.as_text(); };
      budget_.steps(1 + std::ssize(out.named) / 16);
      if (std::any_of(out.named.begin(), out.named.end(), same)) {
        refuse("got multiple values for keyword argument '{}'", key.as_text());
      }
      out.named.emplace_back(key.as_text(), value);
    }
  }
  return out;
}

Value Evaluator::called(const Expr& expr, const ScopePtr& scope) {
  const Value callee = evaluate(*expr.args[0], scope);
  const Arguments arguments = evaluated_arguments(expr, scope);
  line_ = expr.line;
  return call_value(&budget_, callee, arguments);
}

Value Evaluator::filtered(const Expr& expr, const ScopePtr& scope, const Value* block) {
  const Deeper deeper(this);
  Value subject;
  if (expr.args[0] == nullptr) {
    subject = *block;
  } else if (block != nullptr) {
    subject = filtered(*expr.args[0], scope, block);
  } else {
    subject = evaluate(*expr.args[0], scope);
  }
  const Arguments arguments = evaluated_arguments(expr, scope);
  line_ = expr.line;
  return apply_filter(&budget_, expr.text, subject, arguments);
}

Value Evaluator::tested(const Expr& expr, const ScopePtr& scope) {
  const Value subject = evaluate(*expr.args[0], scope);
  const Arguments arguments = evaluated_arguments(expr, scope);
  line_ = expr.line;
  return Value::boolean(apply_test(&budget_, expr.text, subject, arguments));
}

Rendered evaluate(const Program& program,
                  const std::vector<std::pair<std::string, Value>>& variables,
                  const EvaluatorOptions& options) {
  return Evaluator(program, options).run(variables);
}

}  // namespace hocket::data::jinja
