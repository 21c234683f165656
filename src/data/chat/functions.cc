// SPDX-License-Identifier: Apache-2.0
// Implements: the functions that templates call (evaluator_impl.h).
#include <ctime>

#include "data/chat/evaluator_impl.h"
#include "data/chat/objects.h"
#include "data/chat/python_text.h"

namespace hocket::data::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // jinja2.sandbox.MAX_RANGE

}  // namespace

void Evaluator::define_globals(Scope* scope) {
  const auto define = [&](std::string_view name, Value (Evaluator::*function)(const Arguments&)) {
    const int known = id(name);
    if (known < 0) return;
    scope->set(known,
               Value::object(make<Builtin>(std::string(name), [this, function](const Arguments& a) {
                 return (this->*function)(a);
               })));
  };
  define("namespace", &Evaluator::make_namespace);
  define("dict", &Evaluator::make_dict);
  define("range", &Evaluator::make_range);
  define("raise_exception", &Evaluator::raise_exception);
  define("strftime_now", &Evaluator::strftime_now);
  define("cycler", &Evaluator::make_cycler);
  define("joiner", &Evaluator::make_joiner);
}

Value Evaluator::make_cycler(const Arguments& arguments) {
  if (!arguments.named.empty()) refuse("cycler() takes no keyword arguments");
  if (arguments.positional.empty()) refuse("at least one item has to be provided");
  return Value::object(make<Cycler>(this, arguments.positional));
}

Value Evaluator::make_joiner(const Arguments& arguments) {
  const Bound bound("joiner()", arguments, {"sep"});
  return Value::object(make<Joiner>(bound.find(0) != nullptr ? *bound.find(0) : Value::text(", ")));
}

Value Evaluator::make_dict(const Arguments& arguments) {
  Dict dict;
  if (arguments.positional.size() > 1) refuse("dict expected at most 1 argument");
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is_dict()) {
      for (const auto& [key, value] : from.as_dict().items) {
        dict.set(&budget_, key, value);
      }
    } else {
      for (const Value& pair : elements_of(&budget_, from)) {
        const std::vector<Value> both = elements_of(&budget_, pair);
        if (both.size() != 2) refuse("dict expects pairs of a key and a value");
        dict.set(&budget_, both[0], both[1]);
      }
    }
  }
  for (const auto& [name, value] : arguments.named) {
    dict.set(&budget_, Value::text(name), value);
  }
  return Value::dict(std::move(dict));
}

Value Evaluator::make_namespace(const Arguments& arguments) {
  const Value dict = make_dict(arguments);
  auto* made = make<Namespace>();
  for (const auto& [key, value] : dict.as_dict().items) {
    made->set(&budget_, key, value);
  }
  return Value::object(made);
}

Value Evaluator::make_range(const Arguments& arguments) {
  if (!arguments.named.empty()) refuse("range() takes no keyword arguments");
  const auto& given = arguments.positional;
  if (given.empty() || given.size() > 3)
    refuse("range expected 1 to 3 arguments, got {}", given.size());
  const int64_t start = given.size() > 1 ? index_of(given[0]) : 0;
  const int64_t stop = index_of(given[given.size() > 1 ? 1 : 0]);
  const int64_t step = given.size() > 2 ? index_of(given[2]) : 1;
  if (step == 0) refuse("range() arg 3 must not be zero");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (std::ssize(items) == kMaxRange) {
      refuse("Range too big. The sandbox blocks ranges larger than {}", kMaxRange);
    }
    items.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  budget_.bytes(std::ssize(items) * static_cast<int64_t>(sizeof(Value)));
  return Value::list(std::move(items), List::Kind::range);
}

Value Evaluator::raise_exception(const Arguments& arguments) {
  const Bound bound("raise_exception()", arguments, {"message"});
  throw Fault{to_text(&budget_, bound.at(0)), true};
}

Value Evaluator::strftime_now(const Arguments& arguments) {
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
      refuse("strftime_now does not support the directive {}",
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

}  // namespace hocket::data::jinja
