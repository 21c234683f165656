// SPDX-License-Identifier: Apache-2.0
// Dims of tensors: numbers, and symbols with a value per step.
#pragma once

#include <fmt/core.h>

#include <compare>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hocket::graph {

/// A number that changes from step to step: the tokens of a step, the length of a KV cache. Graphs
/// and programs have a table of them; a SymbolId is a place in it.
struct Symbol {
  std::string name;
  int64_t bound = 1;     ///< the most that it can be: memory is planned for it
  int64_t expected = 1;  ///< value for costs
  /// Every value is a multiple of it, and so is the bound. A dim of the symbol can be split into n
  /// parts where n divides it.
  int64_t divisor = 1;
  bool operator==(const Symbol&) const = default;
};
using SymbolId = int32_t;

/// `bound=64 expected=1 divisor=8 name="tokens"`; expected and divisor only if they are not the
/// bound and 1. The words behind the number of a symbol in graph and program texts.
std::string to_string(const Symbol& symbol);
/// Returns the fault of a symbol, or "".
std::string why_invalid(const Symbol& symbol);
/// Throws Error if `value` is none that the symbol can have: 1 to its bound, a multiple of its
/// divisor.
void expect_value(const Symbol& symbol, int64_t value);
/// The values that a step has if every symbol is as expected.
std::vector<int64_t> expected_values(std::span<const Symbol> symbols);

/// A dim: a number, a symbol, or one of `parts` equal parts of a symbol. As a number it is the
/// bound. Two dims are equal only if they are the same number, or the same parts of the same
/// symbol. A value computed from a symbolic dim (a product, a sum) is a number, and not equal to
/// it.
class Dim {
 public:
  constexpr Dim() = default;
  template <std::integral Number>
  constexpr Dim(Number number) : bound_(static_cast<int64_t>(number)) {}
  /// Returns a whole symbol. Throws Error if it is invalid or has more than 2^15 predecessors.
  static Dim of(SymbolId id, const Symbol& symbol);
  /// Any dim, as a text says. Throws Error where no symbol can be like that.
  static Dim of(SymbolId id, int64_t bound, int64_t parts, int64_t multiple);

  constexpr operator int64_t() const { return bound_; }
  constexpr bool symbolic() const { return symbol_ >= 0; }
  /// Symbol of a symbolic dim, the number of its parts, and a divisor of every value.
  constexpr SymbolId symbol() const { return symbol_; }
  constexpr int64_t parts() const { return parts_; }
  constexpr int64_t multiple() const { return multiple_; }
  /// Returns whether every value can be split into n equal parts.
  constexpr bool divides_into(int64_t n) const {
    return n > 0 && (symbolic() ? multiple_ % n == 0 && parts_ * n <= kMaxParts : bound_ % n == 0);
  }
  /// The dim of one of n equal parts; a number is rounded down, a symbol must divide_into(n).
  Dim& operator/=(int64_t n);
  /// The dim of n such parts side by side. Throws Error if that is more than the symbol.
  Dim& operator*=(int64_t n);
  /// A sum is a number.
  Dim& operator+=(int64_t n) { return *this = Dim(bound_ + n); }
  /// The number that it is in a step where symbols have these values.
  constexpr int64_t at(std::span<const int64_t> values) const {
    return symbolic() ? values[static_cast<size_t>(symbol_)] / parts_ : bound_;
  }

  friend constexpr bool operator==(const Dim&, const Dim&) = default;
  friend constexpr auto operator<=>(const Dim&, const Dim&) = default;
  template <std::integral Number>
  friend constexpr bool operator==(const Dim& dim, Number number) {
    return !dim.symbolic() && std::cmp_equal(dim.bound_, number);
  }
  /// Against a number, the bound counts.
  template <std::integral Number>
  friend constexpr std::strong_ordering operator<=>(const Dim& dim, Number number) {
    return dim.bound_ <=> static_cast<int64_t>(number);
  }

 private:
  static constexpr int64_t kMaxParts = UINT16_MAX;
  int64_t bound_ = 0;
  int32_t multiple_ = 1;
  int16_t symbol_ = -1;
  uint16_t parts_ = 1;
};
static_assert(sizeof(Dim) == 16);

using Dims = std::vector<Dim>;

/// Returns "64", or "s0:4096", "s0/4:1024%16": a symbol or a part of it, its bound, and its
/// divisor.
std::string to_string(const Dim& dim);
Dim parse_dim(std::string_view text);  ///< inverse of to_string; throws Error
/// The bounds.
std::vector<int64_t> sizes(const Dims& dims);

}  // namespace hocket::graph

template <>
struct fmt::formatter<hocket::graph::Dim> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  template <class Context>
  auto format(const hocket::graph::Dim& dim, Context& context) const {
    auto out = context.out();
    for (const char c : hocket::graph::to_string(dim)) {
      *out++ = c;
    }
    return out;
  }
};
