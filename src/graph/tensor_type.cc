// SPDX-License-Identifier: Apache-2.0
#include "graph/tensor_type.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/error.h"
#include "base/math.h"
#include "base/text.h"

namespace hocket::graph {

namespace {

/// Saturates the product: an edited type may have any size. In bytes the limit is less than half of
/// int64_t.
constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 32;
int64_t bounded_product(int64_t a, int64_t b) {
  int64_t product = 0;
  const bool fits = !__builtin_mul_overflow(a, b, &product) && product <= kMaxElements;
  return fits ? product : kMaxElements;
}
}  // namespace

int64_t TensorType::max_rows() const {
  if (dims.size() < 2) return kMaxElements;  // edited: no routed tensor, and it fits nowhere
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

bool TensorType::symbolic() const {
  return std::any_of(dims.begin(), dims.end(), [](const Dim& dim) { return dim.symbolic(); });
}

int64_t TensorType::bytes_of(int64_t elements) const {
  const int64_t bits = bits_of(dtype);
  if (encoding) {
    return ceil_div(elements, encoding.block) *
           (encoding.block * bits / 8 + bits_of(encoding.scale) / 8);
  }
  return bits < 8 ? ceil_div(elements, 8 / bits) : elements * (bits / 8);
}

int64_t TensorType::granule() const {
  if (encoding) return encoding.block;
  return std::max<int64_t>(1, 8 / bits_of(dtype));
}

TensorType TensorType::at(std::span<const int64_t> values) const {
  TensorType type = *this;
  for (Dim& dim : type.dims) {
    dim = dim.at(values);
  }
  return type;
}

std::string symbols_differ(const TensorType& type, std::span<const Symbol> symbols) {
  for (const Dim& dim : type.dims) {
    if (!dim.symbolic()) continue;
    const size_t id = static_cast<size_t>(dim.symbol());
    if (id >= symbols.size()) {
      return fmt::format("{} refers to symbol {} of {}", to_string(type), id, symbols.size());
    }
    if (dim * dim.parts() != symbols[id].bound ||
        dim.multiple() * dim.parts() != symbols[id].divisor) {
      return fmt::format("{} has {} for symbol '{}', at most {} and a multiple of {}",
                         to_string(type), to_string(dim), symbols[id].name, symbols[id].bound,
                         symbols[id].divisor);
    }
  }
  return "";
}

bool any_symbolic(std::span<const TensorType> types) {
  return std::any_of(types.begin(), types.end(),
                     [](const TensorType& type) { return type.symbolic(); });
}

std::vector<TensorType> expected_types(std::span<const TensorType> types,
                                       std::span<const Symbol> symbols) {
  std::vector<TensorType> list(types.begin(), types.end());
  if (!any_symbolic(types)) return list;
  const std::vector<int64_t> values = expected_values(symbols);
  for (TensorType& type : list) {
    if (const std::string why = symbols_differ(type, symbols); !why.empty()) {
      fail("symbol", "{}", why);
    }
    type = type.at(values);
  }
  return list;
}

std::string why_invalid(const TensorType& type) {
  // An encoding by itself: small elements, scales that are numbers, whole bytes in a block. Then
  // the last dim, which must hold whole blocks, or whole bytes of 4-bit elements.
  if (type.encoding) {
    if (bits_of(type.dtype) > 8 || type.dtype == DType::f8_e8m0) {
      return fmt::format("elements of {} have no scales; expected at most 8 bits",
                         to_string(type.dtype));
    }
    const DType scale = type.encoding.scale;
    const bool number = is_floating(scale) && bits_of(scale) >= 8;
    if (!number && scale != DType::f8_e8m0) {
      return fmt::format("scales of {}; expected a floating-point type of whole bytes",
                         to_string(scale));
    }
    if (type.encoding.block * bits_of(type.dtype) % 8 != 0) {
      return fmt::format("a block of {} ends inside a byte", type.encoding.block);
    }
  }
  const int64_t granule = type.granule();
  if (granule == 1) return "";
  if (type.dims.empty() || (type.routed() && type.dims.size() < 3) ||
      !type.dims.back().divides_into(granule)) {
    return fmt::format("its last dim cuts {}; expected a multiple of {}",
                       type.encoding ? "a block" : "a byte", granule);
  }
  return "";
}

std::string to_string(const TensorType& type) {
  std::string text = to_string(type.dtype);
  if (type.encoding) {
    text += fmt::format("/{}:{}", to_string(type.encoding.scale), type.encoding.block);
  }
  text += fmt::format("[{}]", fmt::join(type.dims, ","));
  if (type.routed()) {
    text += fmt::format("@{}", type.top_k);
  }
  return text;
}

namespace {

int64_t parse_natural(std::string_view text, std::string_view all) {
  int64_t value = 0;
  if (!parse_int(text, &value) || value < 0) {
    fail("tensor type", "bad number '{}' in '{}'", text, all);
  }
  return value;
}

/// "f32", or "f4_e2m1/f8_e8m0:32".
void parse_elements(std::string_view text, std::string_view all, TensorType* type) {
  const size_t slash = text.find('/');
  type->dtype = parse_dtype(text.substr(0, slash));
  if (slash == text.npos) return;
  const size_t colon = text.find(':', slash);
  if (colon == text.npos) {
    fail("tensor type", "got '{}'; expected element/scale:block[dims]", all);
  }
  type->encoding.scale = parse_dtype(text.substr(slash + 1, colon - slash - 1));
  const int64_t block = parse_natural(text.substr(colon + 1), all);
  if (block < 1 || block > INT32_MAX) {
    fail("tensor type", "a block of {} in '{}'; expected 1 or more elements", block, all);
  }
  type->encoding.block = static_cast<int32_t>(block);
}

}  // namespace

TensorType parse_tensor_type(std::string_view text) {
  // Elements up to '[', dims up to ']', and for a routed tensor '@' and its rows per token; then
  // whether a tensor can have that type.
  const size_t open = text.find('[');
  const size_t close = text.find(']');
  if (open == text.npos || close == text.npos || close < open) {
    fail("tensor type", "got '{}'; expected dtype[dims], e.g. f32[128,64]", text);
  }
  TensorType type;
  parse_elements(text.substr(0, open), text, &type);
  std::string_view dims = text.substr(open + 1, close - open - 1);
  while (!dims.empty()) {
    size_t comma = std::min(dims.find(','), dims.size());
    type.dims.push_back(parse_dim(dims.substr(0, comma)));
    dims.remove_prefix(std::min(comma + 1, dims.size()));
  }
  std::string_view rest = text.substr(close + 1);
  if (!rest.empty()) {
    if (rest[0] != '@') fail("tensor type", "unexpected '{}' in '{}'", rest, text);
    const int64_t top_k = parse_natural(rest.substr(1), text);
    if (top_k < 1 || top_k > INT32_MAX || type.dims.size() < 2) {
      fail("tensor type", "'{}' is not a routed tensor; expected [E,T,...]@k", text);
    }
    type.top_k = static_cast<int32_t>(top_k);
  }
  if (const std::string why = why_invalid(type); !why.empty()) {
    fail("tensor type", "'{}': {}", text, why);
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
