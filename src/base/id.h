// SPDX-License-Identifier: Apache-2.0
// Typed ids: places in tables. The id of one table is no id of another.
#pragma once

#include <fmt/core.h>

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <type_traits>
#include <utility>

namespace hocket {

/// The invalid id.
inline constexpr int32_t kNone = -1;

/// Whole numbers; a truth value is none.
template <class Number>
concept WholeNumber = std::integral<Number> && !std::same_as<Number, bool>;
/// Numbers that an id becomes when asked: all but the index, which it becomes by itself.
template <class Number>
concept AskedNumber =
    !std::same_as<Number, size_t> && (WholeNumber<Number> || std::floating_point<Number>);

/// A typed index into a table of `Of`s, or kNone. It converts from any integer and indexes any
/// vector without a cast, but never converts to, or compares with, another kind of id. 32 bits in
/// memory; 0 by default.
template <class Of>
class Id {
 public:
  constexpr Id() = default;
  template <WholeNumber Number>
  constexpr Id(Number place) : place_(static_cast<int32_t>(place)) {}  // implicit: see above

  /// Conversion to an index. kNone becomes an index beyond every table.
  template <std::same_as<size_t> Index>
  constexpr operator Index() const {
    return static_cast<size_t>(place_);
  }
  /// Conversion to any other number.
  template <AskedNumber Number>
  constexpr explicit operator Number() const {
    return static_cast<Number>(place_);
  }
  constexpr int32_t value() const { return place_; }

  constexpr Id& operator++() {
    ++place_;
    return *this;
  }
  constexpr Id operator++(int) { return place_++; }
  constexpr Id& operator--() {
    --place_;
    return *this;
  }
  template <WholeNumber Number>
  friend constexpr Id operator+(Id id, Number steps) {
    return static_cast<int64_t>(id.place_) + static_cast<int64_t>(steps);
  }
  template <WholeNumber Number>
  friend constexpr Id operator-(Id id, Number steps) {
    return static_cast<int64_t>(id.place_) - static_cast<int64_t>(steps);
  }
  /// Returns the index if the table starts at `base` of a larger one.
  template <WholeNumber Number>
  friend constexpr Number operator+(Number base, Id id) {
    return base + static_cast<Number>(id.place_);
  }
  friend constexpr int32_t operator-(Id id, Id other) { return id.place_ - other.place_; }

  friend constexpr bool operator==(Id, Id) = default;
  friend constexpr auto operator<=>(Id, Id) = default;
  template <WholeNumber Number>
  friend constexpr bool operator==(Id id, Number number) {
    return std::cmp_equal(id.place_, number);
  }
  template <WholeNumber Number>
  friend constexpr std::strong_ordering operator<=>(Id id, Number number) {
    if (std::cmp_equal(id.place_, number)) return std::strong_ordering::equal;
    return std::cmp_less(id.place_, number) ? std::strong_ordering::less
                                            : std::strong_ordering::greater;
  }
  // Deleted: converted to indices, ids of two tables would compare.
  template <class Other>
  friend constexpr bool operator==(Id, Id<Other>) = delete;
  template <class Other>
  friend constexpr std::strong_ordering operator<=>(Id, Id<Other>) = delete;
  template <class Other>
  friend constexpr int32_t operator-(Id, Id<Other>) = delete;

 private:
  int32_t place_ = 0;
};

/// Printed as its number, kNone as -1.
template <class Of>
std::ostream& operator<<(std::ostream& out, Id<Of> id) {
  return out << id.value();
}

/// The place of an enum's value in a table that has an entry for each.
template <class Enum>
requires std::is_enum_v<Enum>
constexpr size_t place_of(Enum value) { return static_cast<size_t>(value); }

}  // namespace hocket

template <class Of>
struct std::hash<hocket::Id<Of>> {
  size_t operator()(hocket::Id<Of> id) const { return std::hash<int32_t>()(id.value()); }
};

/// Printed as its number.
template <class Of>
struct fmt::formatter<hocket::Id<Of>> : fmt::formatter<int32_t> {
  template <class Context>
  auto format(hocket::Id<Of> id, Context& context) const {
    return fmt::formatter<int32_t>::format(id.value(), context);
  }
};
