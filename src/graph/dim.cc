// SPDX-License-Identifier: Apache-2.0
#include "graph/dim.h"

#include "base/error.h"
#include "base/text.h"

namespace hocket::graph {

std::string to_string(const Symbol& symbol) {
  std::string text = fmt::format("bound={}", symbol.bound);
  if (symbol.expected != symbol.bound) {
    text += fmt::format(" expected={}", symbol.expected);
  }
  if (symbol.divisor != 1) {
    text += fmt::format(" divisor={}", symbol.divisor);
  }
  return text + fmt::format(" name=\"{}\"", escape(symbol.name, "\""));
}

std::string why_invalid(const Symbol& symbol) {
  if (symbol.name.empty()) return "has no name";
  if (symbol.divisor < 1 || symbol.divisor > INT32_MAX) {
    return fmt::format("has the divisor {}; expected 1 to {}", symbol.divisor, INT32_MAX);
  }
  if (symbol.bound < 1 || symbol.bound % symbol.divisor != 0) {
    return fmt::format("has the bound {}; expected a multiple of its divisor {}", symbol.bound,
                       symbol.divisor);
  }
  if (symbol.expected < 1 || symbol.expected > symbol.bound) {
    return fmt::format("expects {}; expected 1 to its bound {}", symbol.expected, symbol.bound);
  }
  return "";
}

void expect_value(const Symbol& symbol, int64_t value) {
  if (value < 1 || value > symbol.bound) {
    fail_run("symbol", "{} is {}; expected 1 to {}, the bound of the program", symbol.name, value,
             symbol.bound);
  }
  if (value % symbol.divisor != 0) {
    fail_run("symbol", "{} is {}; expected a multiple of {}", symbol.name, value, symbol.divisor);
  }
}

std::vector<int64_t> expected_values(std::span<const Symbol> symbols) {
  std::vector<int64_t> values;
  for (const Symbol& symbol : symbols) {
    values.push_back(symbol.expected);
  }
  return values;
}

Dim Dim::of(SymbolId id, const Symbol& symbol) {
  if (const std::string why = why_invalid(symbol); !why.empty()) {
    fail("symbol", "'{}' {}", symbol.name, why);
  }
  return of(id, symbol.bound, 1, symbol.divisor);
}

Dim Dim::of(SymbolId id, int64_t bound, int64_t parts, int64_t multiple) {
  if (id < 0 || id > INT16_MAX || parts < 1 || parts > kMaxParts || multiple < 1 ||
      multiple > INT32_MAX || bound < 1 || bound % multiple != 0) {
    fail("symbol",
         "a part in {} of symbol {}, at most {} and a multiple of {}; expected a bound that is one",
         parts, id, bound, multiple);
  }
  Dim dim(bound);
  dim.symbol_ = static_cast<int16_t>(id);
  dim.parts_ = static_cast<uint16_t>(parts);
  dim.multiple_ = static_cast<int32_t>(multiple);
  return dim;
}

Dim& Dim::operator/=(int64_t n) {
  if (symbolic()) {
    if (!divides_into(n)) {
      fail("symbol", "{} can't be split into {} equal parts; expected a divisor of {}",
           to_string(*this), n, multiple_);
    }
    parts_ = static_cast<uint16_t>(parts_ * n);
    multiple_ = static_cast<int32_t>(multiple_ / n);
  }
  bound_ /= n;
  return *this;
}

Dim& Dim::operator*=(int64_t n) {
  if (symbolic()) {
    if (n < 1 || parts_ % n != 0) {
      fail("symbol", "{} times {} is more than the symbol; expected a divisor of its {} parts",
           to_string(*this), n, parts_);
    }
    parts_ = static_cast<uint16_t>(parts_ / n);
    multiple_ = static_cast<int32_t>(multiple_ * n);
  }
  bound_ *= n;
  return *this;
}

std::string to_string(const Dim& dim) {
  if (!dim.symbolic()) return std::to_string(static_cast<int64_t>(dim));
  std::string text = fmt::format("s{}", dim.symbol());
  if (dim.parts() != 1) {
    text += fmt::format("/{}", dim.parts());
  }
  text += fmt::format(":{}", static_cast<int64_t>(dim));
  if (dim.multiple() != 1) {
    text += fmt::format("%{}", dim.multiple());
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

}  // namespace

Dim parse_dim(std::string_view text) {
  if (!text.starts_with('s')) return Dim(parse_natural(text, text));
  // s<id>[/<parts>]:<bound>[%<multiple>]
  const size_t colon = text.find(':');
  if (colon == text.npos) {
    fail("tensor type", "the dim '{}' has no bound; expected s<symbol>:<bound>", text);
  }
  const std::string_view symbol = text.substr(1, colon - 1);
  const std::string_view size = text.substr(colon + 1);
  const size_t slash = symbol.find('/');
  const size_t percent = size.find('%');
  const int64_t id = parse_natural(symbol.substr(0, slash), text);
  const int64_t parts = slash == text.npos ? 1 : parse_natural(symbol.substr(slash + 1), text);
  const int64_t multiple = percent == text.npos ? 1 : parse_natural(size.substr(percent + 1), text);
  if (!std::in_range<SymbolId>(id)) {
    fail("tensor type", "symbol {} in '{}'; expected a place in the table of symbols", id, text);
  }
  return Dim::of(static_cast<SymbolId>(id), parse_natural(size.substr(0, percent), text), parts,
                 multiple);
}

std::vector<int64_t> sizes(const Dims& dims) {
  return std::vector<int64_t>(dims.begin(), dims.end());
}

}  // namespace hocket::graph
