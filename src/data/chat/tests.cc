// SPDX-License-Identifier: Apache-2.0
// Implements: the tests of filters.h, `value is name(arguments)`.
#include <map>

#include "data/chat/filters.h"
#include "data/chat/operations.h"
#include "data/chat/python_text.h"

namespace hocket::data::jinja {
namespace {

using Type = Value::Type;

using Test = bool (*)(Budget*, const Value&, const Arguments&);

bool without_arguments(const Arguments& arguments, bool answer) {
  if (!arguments.positional.empty() || !arguments.named.empty())
    refuse("the test takes no arguments");
  return answer;
}

const Value& operand(const Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty()) {
    refuse("the test takes 1 argument ({} given)",
           arguments.positional.size() + arguments.named.size());
  }
  return arguments.positional[0];
}

int64_t remainder(Budget* budget, const Value& value, const Value& divisor, bool* whole) {
  const Value out = arithmetic(budget, Expr::Op::mod, value, divisor);
  *whole =
      out.is_number() && out.as_real() == static_cast<double>(static_cast<int64_t>(out.as_real()));
  return *whole ? static_cast<int64_t>(out.as_real()) : 0;
}

bool has_remainder(Budget* budget, const Value& value, const Value& divisor, int64_t wanted) {
  bool whole = false;
  return remainder(budget, value, divisor, &whole) == wanted && whole;
}

template <Type type>
bool of_type(Budget*, const Value& value, const Arguments& arguments) {
  return without_arguments(arguments, value.is(type));
}

template <bool wanted>
bool is_bool(Budget*, const Value& value, const Arguments& arguments) {
  return without_arguments(arguments, value.is(Type::boolean) && value.as_bool() == wanted);
}

template <bool upper>
bool has_case(Budget* budget, const Value& value, const Arguments& arguments) {
  const Value text = Value::text(to_text(budget, value));
  const Value out = call_method(budget, Method{text, upper ? "isupper" : "islower"}, {});
  return without_arguments(arguments, out.as_bool());
}

template <int64_t wanted>
bool parity(Budget* budget, const Value& value, const Arguments& arguments) {
  return without_arguments(arguments, has_remainder(budget, value, Value::integer(2), wanted));
}

// One of ==, !=, <, <=, >, >=, by its place in this list.
template <int index>
bool compared(Budget* budget, const Value& value, const Arguments& arguments) {
  static constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
  return compares(budget, kOperators[index], value, operand(arguments));
}

bool is_sequence(const Value& value) {
  if (value.is_list()) return value.as_list().kind <= List::Kind::range;
  return value.is_undefined() || value.is_text() || value.is_dict();
}

bool is_callable(const Value& value) {
  // An Undefined has a __call__, which throws.
  return value.is_undefined() || value.is(Type::method) ||
         (value.is(Type::object) && value.as_object()->callable());
}

// A name of a filter or test; like any key of a dict it must be hashable.
template <bool (*known)(std::string_view)>
bool is_known(Budget* budget, const Value& value, const Arguments& arguments) {
  std::string key;
  if (!hash_key(budget, value, &key)) refuse("unhashable type: '{}'", type_name(value));
  return without_arguments(arguments, value.is_text() && known(value.as_text()));
}

const std::map<std::string_view, Test>& tests() {
  static const std::map<std::string_view, Test> kTests = {
      {"odd", parity<1>},
      {"even", parity<0>},
      {"divisibleby",
       [](Budget* budget, const Value& value, const Arguments& arguments) {
         const Bound bound("divisibleby", arguments, {"num"});
         return has_remainder(budget, value, bound.at(0), 0);
       }},
      {"defined", [](Budget*, const Value& value,
                     const Arguments& a) { return without_arguments(a, !value.is_undefined()); }},
      {"undefined", of_type<Type::undefined>},
      {"none", of_type<Type::none>},
      {"boolean", of_type<Type::boolean>},
      {"true", is_bool<true>},
      {"false", is_bool<false>},
      {"integer", of_type<Type::integer>},
      {"float", of_type<Type::real>},
      {"string", of_type<Type::text>},
      {"mapping", of_type<Type::dict>},
      {"number", [](Budget*, const Value& value,
                    const Arguments& a) { return without_arguments(a, value.is_number()); }},
      {"sequence", [](Budget*, const Value& value,
                      const Arguments& a) { return without_arguments(a, is_sequence(value)); }},
      {"iterable", [](Budget*, const Value& value,
                      const Arguments& a) { return without_arguments(a, is_iterable(value)); }},
      {"callable", [](Budget*, const Value& value,
                      const Arguments& a) { return without_arguments(a, is_callable(value)); }},
      {"escaped", [](Budget*, const Value& value,
                     const Arguments& a) { return without_arguments(a, value.markup()); }},
      {"lower", has_case<false>},
      {"upper", has_case<true>},
      {"sameas",
       [](Budget*, const Value& value, const Arguments& a) { return value.same(operand(a)); }},
      {"in", [](Budget* budget, const Value& value,
                const Arguments& a) { return contains(budget, operand(a), value); }},
      {"filter", is_known<is_filter>},
      {"test", is_known<is_test>},
      {"==", compared<0>},
      {"eq", compared<0>},
      {"equalto", compared<0>},
      {"!=", compared<1>},
      {"ne", compared<1>},
      {"<", compared<2>},
      {"lt", compared<2>},
      {"lessthan", compared<2>},
      {"<=", compared<3>},
      {"le", compared<3>},
      {">", compared<4>},
      {"gt", compared<4>},
      {"greaterthan", compared<4>},
      {">=", compared<5>},
      {"ge", compared<5>}};
  return kTests;
}

}  // namespace

bool is_test(std::string_view name) { return tests().contains(name); }

std::vector<std::string> test_names() {
  std::vector<std::string> out;
  for (const auto& [name, test] : tests()) {
    out.emplace_back(name);
  }
  return out;
}

bool apply_test(Budget* budget, std::string_view name, const Value& subject,
                const Arguments& arguments) {
  budget->steps();
  const auto found = tests().find(name);
  if (found == tests().end()) refuse("No test named {}.", repr_of_text(name));
  return found->second(budget, subject, arguments);
}

}  // namespace hocket::data::jinja
