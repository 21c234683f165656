// SPDX-License-Identifier: Apache-2.0
// Implements: arithmetic, negate and compares (operations.h).
#include <algorithm>
#include <cmath>

#include "data/chat/format.h"
#include "data/chat/operations.h"

namespace hocket::data::jinja {
namespace {

using Op = Expr::Op;
using Type = Value::Type;

constexpr const char* kTooLarge = "an integer beyond 64 bits";

[[noreturn]] void no_operation(std::string_view op, const Value& a, const Value& b) {
  refuse("unsupported operand type(s) for {}: '{}' and '{}'", op, type_name(a), type_name(b));
}

Value with_markup(const Value& a, const Value& b) {
  const bool markup = a.markup() || b.markup();
  const auto part = [&](const Value& v) {
    return markup && !v.markup() ? escape_html(v.as_text()) : v.as_text();
  };
  return Value::text(part(a) + part(b), markup);
}

Value integers(Op op, int64_t a, int64_t b) {
  int64_t out = 0;
  switch (op) {
    case Op::add:
      if (__builtin_add_overflow(a, b, &out)) refuse("{}", kTooLarge);
      return Value::integer(out);
    case Op::sub:
      if (__builtin_sub_overflow(a, b, &out)) refuse("{}", kTooLarge);
      return Value::integer(out);
    case Op::mul:
      if (__builtin_mul_overflow(a, b, &out)) refuse("{}", kTooLarge);
      return Value::integer(out);
    case Op::div:
      if (b == 0) refuse("division by zero");
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case Op::floor_div:
    case Op::mod: {
      if (b == 0) refuse("integer division or modulo by zero");
      if (b == -1) return op == Op::mod ? Value::integer(0) : integers(Op::sub, 0, a);
      const bool down = (a % b != 0) && ((a < 0) != (b < 0));
      return Value::integer(op == Op::mod ? a % b + (down ? b : 0) : a / b - (down ? 1 : 0));
    }
    default:
      break;
  }
  if (b < 0) {
    if (a == 0) refuse("0.0 cannot be raised to a negative power");
    return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
  }
  out = 1;
  for (int64_t base = a; b > 0; b >>= 1) {
    if ((b & 1) != 0 && __builtin_mul_overflow(out, base, &out)) refuse("{}", kTooLarge);
    if (b > 1 && __builtin_mul_overflow(base, base, &base)) refuse("{}", kTooLarge);
  }
  return Value::integer(out);
}

Value reals(Op op, double a, double b) {
  double out = 0;
  switch (op) {
    case Op::add:
      return Value::real(a + b);
    case Op::sub:
      return Value::real(a - b);
    case Op::mul:
      return Value::real(a * b);
    case Op::div:
      if (b == 0) refuse("float division by zero");
      return Value::real(a / b);
    case Op::floor_div:
    case Op::mod: {
      if (b == 0) refuse("float floor division by zero");
      double rest = std::fmod(a, b);
      if (rest != 0 && (rest < 0) != (b < 0)) {
        rest += b;
      }
      if (rest == 0) {
        rest = std::copysign(0.0, b);
      }
      if (op == Op::mod) return Value::real(rest);
      const double quotient = (a - rest) / b;
      const double floor = std::floor(quotient);
      return Value::real(quotient == 0 ? std::copysign(0.0, a / b)
                                       : floor + (quotient - floor > 0.5 ? 1 : 0));
    }
    default:
      break;
  }
  if (a == 0 && b < 0) refuse("0.0 cannot be raised to a negative power");
  out = std::pow(a, b);
  if (std::isnan(out) && !std::isnan(a) && !std::isnan(b))
    refuse("a power that is a complex number");
  if (std::isinf(out) && !std::isinf(a) && !std::isinf(b)) refuse("a power out of range");
  return Value::real(out);
}

Value repeated(Budget* budget, const Value& sequence, int64_t count) {
  count = std::max<int64_t>(count, 0);
  const bool text = sequence.is_text();
  const auto size =
      static_cast<int64_t>(text ? sequence.as_text().size() : sequence.items().size());
  int64_t total = 0;
  if (__builtin_mul_overflow(size, count, &total))
    refuse("makes more text than a chat template may");
  budget->bytes(text || total > (int64_t{1} << 40) ? total
                                                   : total * static_cast<int64_t>(sizeof(Value)));
  if (text) {
    std::string out;
    out.reserve(static_cast<size_t>(total));
    for (int64_t i = 0; i < count && size > 0; ++i) {
      out += sequence.as_text();
    }
    return Value::text(std::move(out), sequence.markup());
  }
  std::vector<Value> out;
  for (int64_t i = 0; i < count && size > 0; ++i) {
    out.insert(out.end(), sequence.items().begin(), sequence.items().end());
  }
  return Value::list(std::move(out), sequence.as_list().kind);
}

bool is_plain_list(const Value& value) {
  return value.is_list() && value.as_list().kind <= List::Kind::tuple;
}

const char* sign_of(Op op) {
  switch (op) {
    case Op::add:
      return "+";
    case Op::sub:
      return "-";
    case Op::mul:
      return "*";
    case Op::div:
      return "/";
    case Op::floor_div:
      return "//";
    case Op::mod:
      return "%";
    default:
      return "** or pow()";
  }
}

Value escaped_arguments(const Value& value) {
  const auto escaped = [](const Value& v) {
    return v.is_text() && !v.markup() ? Value::text(escape_html(v.as_text()), true) : v;
  };
  if (!value.is_kind(List::Kind::tuple)) return escaped(value);
  std::vector<Value> items;
  std::transform(value.items().begin(), value.items().end(), std::back_inserter(items), escaped);
  return Value::list(std::move(items), List::Kind::tuple);
}

}  // namespace

Value arithmetic(Budget* budget, Op op, const Value& a, const Value& b) {
  budget->steps();
  if (op == Op::mod && a.is_text()) {
    std::string out = percent_format(budget, a.as_text(), a.markup() ? escaped_arguments(b) : b);
    return Value::text(std::move(out), a.markup());
  }
  require_defined(a);
  require_defined(b);
  if (a.is_integral() && b.is_integral()) return integers(op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return reals(op, a.as_real(), b.as_real());
  if (op == Op::add) {
    if (a.is_text() && b.is_text()) {
      budget->bytes(static_cast<int64_t>(a.as_text().size() + b.as_text().size()));
      return with_markup(a, b);
    }
    if (is_plain_list(a) && is_plain_list(b) && a.as_list().kind == b.as_list().kind) {
      const auto count = std::ssize(a.items()) + std::ssize(b.items());
      budget->bytes(count * static_cast<int64_t>(sizeof(Value)));
      std::vector<Value> out = a.items();
      out.insert(out.end(), b.items().begin(), b.items().end());
      return Value::list(std::move(out), a.as_list().kind);
    }
    if (a.is_text() || is_plain_list(a)) {
      refuse("can only concatenate {0} (not \"{1}\") to {0}", type_name(a), type_name(b));
    }
  }
  if (op == Op::mul) {
    const bool left = a.is_text() || is_plain_list(a), right = b.is_text() || is_plain_list(b);
    if (left && b.is_integral()) return repeated(budget, a, b.as_int());
    if (right && a.is_integral()) return repeated(budget, b, a.as_int());
    if (left || right) {
      refuse("can't multiply sequence by non-int of type '{}'", type_name(left ? b : a));
    }
  }
  no_operation(sign_of(op), a, b);
}

Value negate(const Value& value) {
  require_defined(value);
  if (value.is_integral()) return integers(Op::sub, 0, value.as_int());
  if (value.is(Type::real)) return Value::real(-value.as_real());
  refuse("bad operand type for unary -: '{}'", type_name(value));
}

bool compares(Budget* budget, std::string_view op, const Value& a, const Value& b) {
  if (op == "==") return equal(budget, a, b);
  if (op == "!=") return !equal(budget, a, b);
  const int order = compare(budget, a, b, std::string(op).c_str());
  if (order == kUnordered) return false;
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  return op == ">" ? order > 0 : order >= 0;
}

}  // namespace hocket::data::jinja
