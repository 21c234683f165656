// SPDX-License-Identifier: Apache-2.0
#include "graph/tensor_type.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/error.h"
#include "base/id.h"
#include "base/text.h"

namespace hocket::graph {

namespace {
constexpr struct {
  DType dtype;
  const char* name;
  int64_t size;
} kDTypes[] = {{DType::f32, "f32", 4},
               {DType::f64, "f64", 8},
               {DType::bf16, "bf16", 2},
               {DType::i32, "i32", 4},
               {DType::i64, "i64", 8}};

int64_t parse_int(std::string_view text, std::string_view all) {
  int64_t value = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || value < 0) {
    fail("tensor type", "bad number '{}' in '{}'", text, all);
  }
  return value;
}

/// The product, or kMostElements if it is more: an edited type has a size as well, one that fits
/// nowhere. In bytes it is less than half of what int64_t holds.
constexpr int64_t kMostElements = std::numeric_limits<int64_t>::max() / 32;
int64_t bounded_product(int64_t a, int64_t b) {
  int64_t product = 0;
  const bool fits = !__builtin_mul_overflow(a, b, &product) && product <= kMostElements;
  return fits ? product : kMostElements;
}
}  // namespace

int64_t size_of(DType dtype) { return kDTypes[place_of(dtype)].size; }
const char* to_string(DType dtype) { return kDTypes[place_of(dtype)].name; }

DType parse_dtype(std::string_view text) {
  for (const auto& row : kDTypes) {
    if (text == row.name) return row.dtype;
  }
  fail("dtype", "unknown '{}'; expected f32, f64, bf16, i32 or i64", text);
}

int64_t TensorType::max_rows() const {
  if (dims.size() < 2) return kMostElements;  // edited: no routed tensor, and it fits nowhere
  return bounded_product(dims[1], std::min<int64_t>(top_k, dims[0]));
}

int64_t TensorType::row_size() const {
  int64_t elements = 1;
  for (size_t i = 2; i < dims.size(); ++i) {
    elements = bounded_product(elements, dims[i]);
  }
  return elements;
}

int64_t TensorType::numel() const {
  if (routed()) return bounded_product(max_rows(), row_size());
  int64_t elements = 1;
  for (int64_t dim : dims) {
    elements = bounded_product(elements, dim);
  }
  return elements;
}

std::optional<DType> compute_dtype(std::span<const TensorType> in,
                                   std::span<const TensorType> out) {
  for (const std::span<const TensorType> list : {in, out}) {
    for (const TensorType& type : list) {
      if (is_floating(type.dtype)) return type.dtype;
    }
  }
  return std::nullopt;
}

std::string to_string(const TensorType& type) {
  std::string text = fmt::format("{}[{}]", to_string(type.dtype), fmt::join(type.dims, ","));
  if (type.routed()) {
    text += fmt::format("@{}", type.top_k);
  }
  return text;
}

TensorType parse_tensor_type(std::string_view text) {
  const size_t open = text.find('[');
  const size_t close = text.find(']');
  if (open == text.npos || close == text.npos || close < open) {
    fail("tensor type", "got '{}'; expected dtype[dims], e.g. f32[128,64]", text);
  }
  TensorType type;
  type.dtype = parse_dtype(text.substr(0, open));
  std::string_view dims = text.substr(open + 1, close - open - 1);
  while (!dims.empty()) {
    size_t comma = std::min(dims.find(','), dims.size());
    type.dims.push_back(parse_int(dims.substr(0, comma), text));
    dims.remove_prefix(std::min(comma + 1, dims.size()));
  }
  std::string_view rest = text.substr(close + 1);
  if (!rest.empty()) {
    if (rest[0] != '@') fail("tensor type", "unexpected '{}' in '{}'", rest, text);
    type.top_k = static_cast<int32_t>(parse_int(rest.substr(1), text));
    if (type.top_k < 1 || type.dims.size() < 2) {
      fail("tensor type", "'{}' is not a routed tensor; expected [E,T,...]@k", text);
    }
  }
  return type;
}

namespace {
template <typename T>
const T& get(const std::map<std::string, Attr, std::less<>>& map, std::string_view key,
             const char* kind) {
  auto it = map.find(key);
  if (it == map.end()) fail("attributes", "'{}' is missing; expected {}", key, kind);
  const T* value = std::get_if<T>(&it->second);
  if (!value) fail("attributes", "'{}' has another type; expected {}", key, kind);
  return *value;
}
}  // namespace

int64_t Attrs::i(std::string_view key) const { return get<int64_t>(map_, key, "an integer"); }
double Attrs::f(std::string_view key) const { return get<double>(map_, key, "a number"); }
const std::string& Attrs::s(std::string_view key) const {
  return get<std::string>(map_, key, "a string");
}
int64_t Attrs::i_or(std::string_view key, int64_t fallback) const {
  return has(key) ? i(key) : fallback;
}
void Attrs::erase(std::string_view key) {
  if (auto it = map_.find(key); it != map_.end()) {
    map_.erase(it);
  }
}

namespace {
/// A double that always reads back as a double: it has a '.', an exponent, or is inf/nan.
std::string print_double(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == text.npos) {
    text += ".0";
  }
  return text;
}

bool is_quote(char c) { return c == '"' || c == '\''; }

Attr parse_attr(std::string_view text) {
  // A quote begins a string; a number with '.', an exponent, inf or nan is a double and any other
  // an integer. print_double keeps to that, so that the type survives.
  if (!text.empty() && is_quote(text.front())) {
    std::string value;
    if (text.size() < 2 || text.back() != text.front() ||
        !unescape(text.substr(1, text.size() - 2), &value)) {
      fail("attributes", "unterminated string or bad escape {}", text);
    }
    return value;
  }
  auto number = [&](auto zero) {
    auto value = zero;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size()) {
      fail("attributes", "bad value '{}'", text);
    }
    return value;
  };
  if (text.find_first_of(".en") == text.npos) return number(int64_t{0});
  return number(0.0);
}
}  // namespace

std::string to_string(const Attrs& attrs, char quote) {
  if (attrs.empty()) return "";
  std::string text = "{";
  for (const auto& [key, value] : attrs.items()) {
    if (text.size() > 1) {
      text += ' ';
    }
    text += key + '=';
    if (const auto* whole = std::get_if<int64_t>(&value)) {
      text += fmt::format("{}", *whole);
    } else if (const auto* real = std::get_if<double>(&value)) {
      text += print_double(*real);
    } else {
      text += quote + escape(std::get<std::string>(value), "\"'") + quote;
    }
  }
  return text + '}';
}

Attrs parse_attrs(std::string_view text) {
  Attrs attrs;
  if (text.empty()) return attrs;
  if (text.size() < 2 || text.front() != '{' || text.back() != '}') {
    fail("attributes", "got '{}'; expected {{key=value ...}}", text);
  }
  text = text.substr(1, text.size() - 2);
  while (!text.empty()) {
    size_t eq = text.find('=');
    if (eq == text.npos || eq == 0) fail("attributes", "got '{}'; expected key=value", text);
    size_t end = eq + 1;
    bool quoted = false;
    while (end < text.size() && (quoted || text[end] != ' ')) {
      quoted ^= is_quote(text[end++]);
    }
    attrs.set(std::string(text.substr(0, eq)), parse_attr(text.substr(eq + 1, end - eq - 1)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return attrs;
}

}  // namespace hocket::graph
