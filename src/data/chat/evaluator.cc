// SPDX-License-Identifier: Apache-2.0
#include "data/chat/evaluator.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "data/chat/filters.h"
#include "data/chat/operations.h"
#include "data/chat/python_text.h"

namespace hocket::data::jinja {
namespace {

using Op = Expr::Op;

constexpr int64_t kMaxRange = 100'000;  // jinja2.sandbox.MAX_RANGE

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

class Namespace : public Object {
 public:
  const char* type() const override { return "Namespace"; }
  bool callable() const override { return false; }
  Value call(const Arguments&) override { fault("'Namespace' object is not callable"); }
  bool attribute(std::string_view name, Value* out) override {
    const Value* found = attributes_.find(name);
    if (found != nullptr) {
      *out = *found;
    }
    return found != nullptr;
  }
  void set(Budget* budget, const Value& name, Value value) {
    if (!name.is_text()) fault("a namespace expects names, not {}", type_name(name));
    if (name.as_text().starts_with('_')) {
      fault("a namespace cannot store the attribute '{}'", name.as_text());
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

class Builtin : public Object {
 public:
  using Function = std::function<Value(const Arguments&)>;
  Builtin(std::string name, Function function)
      : name_(std::move(name)), function_(std::move(function)) {}
  const char* type() const override { return "function"; }
  std::string repr(Budget*, int) const override { fault("prints the function '{}'", name_); }
  Value call(const Arguments& arguments) override { return function_(arguments); }

 private:
  std::string name_;
  Function function_;
};

class Evaluator {
 public:
  Evaluator(const Program& program, const EvaluatorOptions& options)
      : program_(program), options_(options), budget_(options.limits) {
    for (size_t i = 0; i < program.names.size(); ++i) {
      const std::string& name = program.names[i];
      (name == "loop"      ? loop_
       : name == "caller"  ? caller_
       : name == "varargs" ? varargs_
       : name == "kwargs"  ? kwargs_
                           : ignored_) = static_cast<int>(i);
    }
  }

  Rendered run(const std::vector<std::pair<std::string, Value>>& variables) {
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

 private:
  friend class Macro;
  friend class Loop;

  // Limits the native stack: every level of statements and expressions holds one.
  class Deeper {
   public:
    explicit Deeper(Evaluator* evaluator) : evaluator_(evaluator) {
      if (++evaluator_->depth_ > evaluator_->options_.limits.max_depth) {
        --evaluator_->depth_;
        fault("nests calls deeper than a chat template may");
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

  int id(std::string_view name) const {
    const auto found = std::find(program_.names.begin(), program_.names.end(), name);
    return found == program_.names.end() ? -1 : static_cast<int>(found - program_.names.begin());
  }
  template <class T, class... Args>
  T* make(Args&&... args) {
    budget_.bytes(static_cast<int64_t>(sizeof(T)));
    auto made = std::make_unique<T>(std::forward<Args>(args)...);
    T* out = made.get();
    objects_.push_back(std::move(made));
    return out;
  }

  void print(std::string_view text) {
    budget_.bytes(static_cast<int64_t>(text.size()));
    if (static_cast<int64_t>(out_->size() + text.size()) > options_.limits.max_output_bytes) {
      fault("makes more text than a chat template may");
    }
    *out_ += text;
  }

  // --- functions

  void define_globals(Scope* scope) {
    const auto define = [&](std::string_view name, Value (Evaluator::*function)(const Arguments&)) {
      const int known = id(name);
      if (known < 0) return;
      scope->set(known, Value::object(
                            make<Builtin>(std::string(name), [this, function](const Arguments& a) {
                              return (this->*function)(a);
                            })));
    };
    define("namespace", &Evaluator::make_namespace);
    define("dict", &Evaluator::make_dict);
    define("range", &Evaluator::make_range);
    define("raise_exception", &Evaluator::raise_exception);
    define("strftime_now", &Evaluator::strftime_now);
  }

  Value make_dict(const Arguments& arguments) {
    Dict dict;
    if (arguments.positional.size() > 1) fault("dict expected at most 1 argument");
    if (!arguments.positional.empty()) {
      const Value& from = arguments.positional[0];
      if (from.is_dict()) {
        for (const auto& [key, value] : from.as_dict().items) {
          dict.set(&budget_, key, value);
        }
      } else {
        for (const Value& pair : elements_of(&budget_, from)) {
          const std::vector<Value> both = elements_of(&budget_, pair);
          if (both.size() != 2) fault("dict expects pairs of a key and a value");
          dict.set(&budget_, both[0], both[1]);
        }
      }
    }
    for (const auto& [name, value] : arguments.named) {
      dict.set(&budget_, Value::text(name), value);
    }
    return Value::dict(std::move(dict));
  }

  Value make_namespace(const Arguments& arguments) {
    const Value dict = make_dict(arguments);
    auto* made = make<Namespace>();
    for (const auto& [key, value] : dict.as_dict().items) {
      made->set(&budget_, key, value);
    }
    return Value::object(made);
  }

  Value make_range(const Arguments& arguments) {
    if (!arguments.named.empty()) fault("range() takes no keyword arguments");
    const auto& given = arguments.positional;
    if (given.empty() || given.size() > 3)
      fault("range expected 1 to 3 arguments, got {}", given.size());
    const int64_t start = given.size() > 1 ? index_of(given[0]) : 0;
    const int64_t stop = index_of(given[given.size() > 1 ? 1 : 0]);
    const int64_t step = given.size() > 2 ? index_of(given[2]) : 1;
    if (step == 0) fault("range() arg 3 must not be zero");
    std::vector<Value> items;
    for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
      if (std::ssize(items) == kMaxRange) {
        fault("Range too big. The sandbox blocks ranges larger than {}", kMaxRange);
      }
      items.push_back(Value::integer(i));
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    budget_.bytes(std::ssize(items) * static_cast<int64_t>(sizeof(Value)));
    return Value::list(std::move(items), List::Kind::range);
  }

  Value raise_exception(const Arguments& arguments) {
    const Bound bound("raise_exception()", arguments, {"message"});
    throw Fault{to_text(&budget_, bound.at(0)), true};
  }

  Value strftime_now(const Arguments& arguments) {
    const Bound bound("strftime_now()", arguments, {"format"});
    std::string format;
    // glibc's widths and flags beyond '-' are no part of Python's directives.
    const std::string& given = bound.text(0);
    for (size_t i = 0; i < given.size(); ++i) {
      format += given[i];
      if (given[i] != '%') continue;
      if (++i < given.size() && given[i] == '-') {
        format += given[i++];
      }
      static constexpr std::string_view kDirectives = "aAwdbBmyYHIpMSjUWcxXGuV%eDFThnRCtgklsPr";
      if (i >= given.size() || kDirectives.find(given[i]) == std::string_view::npos) {
        fault("strftime_now does not support the directive {}",
              repr_of_text(std::string_view(given).substr(i > 0 ? i - 1 : 0, 2)));
      }
      format += given[i];
    }
    if (format.empty()) return Value::text("");
    const std::tm now = options_.local_time();
    std::string out(format.size() * 64 + 64, '\0');
    budget_.bytes(static_cast<int64_t>(out.size()));
    out.resize(std::strftime(out.data(), out.size(), format.c_str(), &now));
    return Value::text(std::move(out));
  }

  // --- statements

  Flow execute(const Block& block, const ScopePtr& scope) {
    for (const StmtPtr& statement : block) {
      if (const Flow flow = execute(*statement, scope); flow != Flow::normal) return flow;
    }
    return Flow::normal;
  }

  Flow execute(const Stmt& statement, const ScopePtr& scope) {
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

  Flow conditional(const Stmt& statement, const ScopePtr& scope) {
    for (const Branch& branch : statement.branches) {
      if (branch.test == nullptr || truthy(evaluate(*branch.test, scope))) {
        return execute(branch.body, scope);
      }
    }
    return Flow::normal;
  }

  void generation(const Stmt& statement, const ScopePtr& scope) {
    const size_t begin = out_->size();
    execute(statement.body, std::make_shared<Scope>(scope));
    if (captures_ == 0) {
      rendered_.generation.push_back({begin, out_->size()});
    } else {
      rendered_.lost_generation_line = statement.line;
    }
  }

  Flow captured_block(const Stmt& statement, const ScopePtr& scope, bool assigns) {
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

  void call_block(const Stmt& statement, const ScopePtr& scope) {
    const Expr& call = *statement.exprs[0];
    const Value callee = evaluate(*call.args[0], scope);
    Arguments arguments = evaluated_arguments(call, scope);
    arguments.named.emplace_back("caller", make_macro(statement, scope));
    line_ = call.line;
    print(to_text(&budget_, call_value(&budget_, callee, arguments)));
  }

  void assign(const Target& target, Value value, const ScopePtr& scope) {
    if (target.several) {
      std::vector<Value> parts = elements_of(&budget_, value);
      if (parts.size() != target.parts.size()) {
        fault("{} values to unpack (expected {}, got {})",
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
    if (space == nullptr) fault("cannot assign attribute on non-namespace object");
    space->set(&budget_, Value::text(target.attribute), std::move(value));
  }

  /// Runs a loop over `values`; `depth` counts the calls of a recursive one.
  Flow loop(const Stmt& statement, const ScopePtr& scope, const Value& values, int depth);
  Value make_macro(const Stmt& statement, const ScopePtr& scope);

  // --- expressions

  Value lookup(int name, const ScopePtr& scope) {
    if (const Value* found = scope->find(&budget_, name)) return *found;
    return Value::undefined(
        fmt::format("'{}' is undefined", program_.names[static_cast<size_t>(name)]));
  }

  Value evaluate(const Expr& expr, const ScopePtr& scope) {
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

  Value binary(const Expr& expr, const ScopePtr& scope) {
    const Value left = evaluate(*expr.args[0], scope);
    const Value right = evaluate(*expr.args[1], scope);
    line_ = expr.line;
    if (expr.op == Op::item) return get_item(&budget_, left, right);
    return arithmetic(&budget_, expr.op, left, right);
  }

  static Value positive(const Value& value) {
    require_defined(value);
    if (!value.is_number()) fault("bad operand type for unary +: '{}'", type_name(value));
    return value.is_integral() ? Value::integer(value.as_int()) : value;
  }

  Value sequence(const Expr& expr, const ScopePtr& scope) {
    std::vector<Value> items;
    budget_.bytes(std::ssize(expr.args) * static_cast<int64_t>(sizeof(Value)));
    for (const ExprPtr& item : expr.args) {
      items.push_back(evaluate(*item, scope));
    }
    return Value::list(std::move(items),
                       expr.op == Op::list ? List::Kind::list : List::Kind::tuple);
  }

  Value dict(const Expr& expr, const ScopePtr& scope) {
    Dict out;
    for (size_t i = 0; i < expr.args.size(); i += 2) {
      const Value key = evaluate(*expr.args[i], scope);
      out.set(&budget_, key, evaluate(*expr.args[i + 1], scope));
    }
    return Value::dict(std::move(out));
  }

  Value concatenated(const Expr& expr, const ScopePtr& scope) {
    std::string out;
    for (const ExprPtr& part : expr.args) {
      out += to_text(&budget_, evaluate(*part, scope));
    }
    budget_.bytes(static_cast<int64_t>(out.size()));
    return Value::text(std::move(out));
  }

  bool compared(const Expr& expr, const ScopePtr& scope) {
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

  Value condition(const Expr& expr, const ScopePtr& scope) {
    if (truthy(evaluate(*expr.args[1], scope))) return evaluate(*expr.args[0], scope);
    if (expr.args[2] != nullptr) return evaluate(*expr.args[2], scope);
    return Value::undefined(fmt::format(
        "the inline if-expression on line {} evaluated to false and no else section was "
        "defined.",
        expr.line));
  }

  Value sliced(const Expr& expr, const ScopePtr& scope) {
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
  Arguments evaluated_arguments(const Expr& expr, const ScopePtr& scope) {
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
      if (!more.is_dict()) fault("argument after ** must be a mapping, not {}", type_name(more));
      for (const auto& [key, value] : more.as_dict().items) {
        if (!key.is_text()) fault("keywords must be strings");
        const auto same = [&](const auto& other) { return other.first == key.as_text(); };
        budget_.steps(1 + std::ssize(out.named) / 16);
        if (std::any_of(out.named.begin(), out.named.end(), same)) {
          fault("got multiple values for keyword argument '{}'", key.as_text());
        }
        out.named.emplace_back(key.as_text(), value);
      }
    }
    return out;
  }

  Value called(const Expr& expr, const ScopePtr& scope) {
    const Value callee = evaluate(*expr.args[0], scope);
    const Arguments arguments = evaluated_arguments(expr, scope);
    line_ = expr.line;
    return call_value(&budget_, callee, arguments);
  }

  /// `block` is the text of a block that is filtered, where the filter has no subject of its own.
  Value filtered(const Expr& expr, const ScopePtr& scope, const Value* block) {
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

  Value tested(const Expr& expr, const ScopePtr& scope) {
    const Value subject = evaluate(*expr.args[0], scope);
    const Arguments arguments = evaluated_arguments(expr, scope);
    line_ = expr.line;
    return Value::boolean(apply_test(&budget_, expr.text, subject, arguments));
  }

  const Program& program_;
  const EvaluatorOptions& options_;
  Budget budget_;
  Rendered rendered_;
  std::string* out_ = nullptr;
  int captures_ = 0, depth_ = 0, line_ = 1;
  int loop_ = -1, caller_ = -1, varargs_ = -1, kwargs_ = -1, ignored_ = -1;
  std::vector<std::unique_ptr<Object>> objects_;  ///< values refer to them without owning them
};

class Macro : public Object {
 public:
  Macro(Evaluator* evaluator, const Stmt& definition, ScopePtr scope)
      : evaluator_(evaluator), definition_(definition), scope_(std::move(scope)) {}
  const char* type() const override { return "Macro"; }
  std::string repr(Budget*, int) const override {
    return definition_.text.empty() ? "<Macro 'caller'>"
                                    : fmt::format("<Macro {}>", repr_of_text(definition_.text));
  }
  bool attribute(std::string_view name, Value* out) override {
    if (name == "name") {
      *out = Value::text(definition_.text);
    }
    return name == "name";
  }

  // Arguments are bound by place, then by name; a missing one has its default, computed in the
  // macro's own scope from left to right, or is undefined.
  Value call(const Arguments& arguments) override {
    const Signature& signature = definition_.signature;
    const auto scope = std::make_shared<Scope>(scope_);
    std::vector<std::pair<std::string, Value>> named = arguments.named;
    const auto take = [&](std::string_view name) -> std::optional<Value> {
      const auto found = std::find_if(named.begin(), named.end(),
                                      [&](const auto& other) { return other.first == name; });
      if (found == named.end()) return std::nullopt;
      Value value = std::move(found->second);
      named.erase(found);
      return value;
    };
    for (size_t i = 0; i < signature.names.size(); ++i) {
      evaluator_->budget_.steps(1 + std::ssize(named) / 16 + std::ssize(scope->variables) / 16);
      if (i < arguments.positional.size()) {
        scope->set(signature.ids[i], arguments.positional[i]);
      } else if (auto value = take(signature.names[i])) {
        scope->set(signature.ids[i], *std::move(value));
      }
    }
    special_arguments(arguments, scope.get(), &named, take("caller"));
    for (size_t i = arguments.positional.size(); i < signature.names.size(); ++i) {
      set_default(i, scope);
    }
    Evaluator::Capture capture(evaluator_);
    evaluator_->execute(definition_.body, scope);
    return capture.value();
  }

 private:
  void set_default(size_t i, const ScopePtr& scope) {
    const Signature& signature = definition_.signature;
    const auto own = [&](const auto& variable) { return variable.first == signature.ids[i]; };
    if (std::any_of(scope->variables.begin(), scope->variables.end(), own)) return;
    const size_t without = signature.names.size() - signature.defaults.size();
    scope->set(signature.ids[i],
               i < without ? Value::undefined(
                                 fmt::format("parameter '{}' was not provided", signature.names[i]))
                           : evaluator_->evaluate(*signature.defaults[i - without], scope));
  }

  // `named` are those that no parameter took.
  void special_arguments(const Arguments& arguments, Scope* scope,
                         std::vector<std::pair<std::string, Value>>* named,
                         std::optional<Value> caller) {
    const Signature& signature = definition_.signature;
    if (signature.uses_caller) {
      scope->set(evaluator_->caller_, caller ? *caller : Value::undefined("No caller defined"));
    } else if (caller) {
      named->emplace_back("caller", *caller);
    }
    if (signature.uses_kwargs) {
      scope->set(evaluator_->kwargs_, evaluator_->make_dict({{}, *named}));
    } else if (!named->empty()) {
      fault("macro {} takes no keyword argument {}", repr_of_text(definition_.text),
            repr_of_text(named->front().first));
    }
    const auto count =
        static_cast<ptrdiff_t>(std::min(arguments.positional.size(), signature.names.size()));
    std::vector<Value> rest(arguments.positional.begin() + count, arguments.positional.end());
    if (signature.uses_varargs) {
      scope->set(evaluator_->varargs_, Value::list(std::move(rest), List::Kind::tuple));
    } else if (!rest.empty()) {
      fault("macro {} takes not more than {} argument(s)", repr_of_text(definition_.text),
            signature.names.size());
    }
  }

  Evaluator* evaluator_;
  const Stmt& definition_;
  ScopePtr scope_;
};

// The variable `loop`, which looks one element ahead when asked for the next or last one.
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
  const char* type() const override { return "LoopContext"; }
  std::string repr(Budget*, int) const override {
    fault("prints 'loop'; expected an attribute of it");
  }

  bool advance(Value* item) {
    if (ahead_) {
      *item = *std::move(ahead_);
      ahead_.reset();
    } else if (ended_ || !next_(item)) {
      return false;
    }
    ++index_;
    previous_ = std::move(current_);
    current_ = *item;
    return true;
  }
  bool attribute(std::string_view name, Value* out) override {
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
      *out = peek() ? *ahead_ : Value::undefined("there is no next item");
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

  Value call(const Arguments& arguments) override {
    if (!definition_.recursive) {
      fault("The loop must have the 'recursive' marker to be called recursively.");
    }
    const Bound bound("loop()", arguments, {"iterable"});
    Evaluator::Capture capture(evaluator_);
    evaluator_->loop(definition_, scope_, bound.at(0), depth_ + 1);
    return capture.value();
  }

 private:
  bool peek() {
    Value item;
    if (!ahead_ && !ended_) {
      if (next_(&item)) {
        ahead_ = std::move(item);
      } else {
        ended_ = true;
      }
    }
    return ahead_.has_value();
  }
  // Length, for which a generator is read to its end.
  int64_t length() {
    if (!length_) {
      std::vector<Value> rest;
      for (Value item; !ended_ && next_(&item);) {
        evaluator_->budget_.bytes(static_cast<int64_t>(sizeof(Value)));
        rest.push_back(std::move(item));
      }
      length_ = std::ssize(rest) + index_ + 1 + (ahead_ ? 1 : 0);
      const Value list = Value::list(std::move(rest));
      next_ = iterate(&evaluator_->budget_, list);
      ended_ = false;
    }
    return *length_;
  }
  Value cycle(const Arguments& arguments) const {
    if (arguments.positional.empty()) fault("no items for cycling given");
    const auto at = static_cast<size_t>(index_) % arguments.positional.size();
    return arguments.positional[at];
  }
  Value changed(const Arguments& arguments) {
    const Value now = Value::list(arguments.positional, List::Kind::tuple);
    const bool same = !last_.is_undefined() && equal(&evaluator_->budget_, last_, now);
    last_ = now;
    return Value::boolean(!same);
  }

  Evaluator* evaluator_;
  const Stmt& definition_;
  ScopePtr scope_;
  Next next_;
  int depth_;
  int64_t index_ = -1;
  std::optional<int64_t> length_;
  std::optional<Value> ahead_;
  bool ended_ = false;
  Value previous_, current_, last_;
};

Value Evaluator::make_macro(const Stmt& statement, const ScopePtr& scope) {
  return Value::object(make<Macro>(this, statement, scope));
}

// An iteration has a scope of its own. The body of `else` runs if no iteration came to its end, so
// also if the first one breaks, as in jinja2.
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

}  // namespace

Rendered evaluate(const Program& program,
                  const std::vector<std::pair<std::string, Value>>& variables,
                  const EvaluatorOptions& options) {
  return Evaluator(program, options).run(variables);
}

}  // namespace hocket::data::jinja
