// SPDX-License-Identifier: Apache-2.0
// Number of members of an aggregate at compile time, to verify that lists of members are complete.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

namespace hocket {
namespace members_detail {

/// Stands for an initialiser of any member; never evaluated.
struct Anything {
  template <class T>
  constexpr operator T() const noexcept;  // NOLINT: implicit by design
};

template <class T, size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return requires { T{(static_cast<void>(I), Anything{})...}; };
}

template <class T, size_t kCount, size_t kMaxMembers>
constexpr size_t largest() {
  if constexpr (kCount == kMaxMembers) {
    return kMaxMembers;
  } else if constexpr (takes<T>(std::make_index_sequence<kCount + 1>())) {
    return largest<T, kCount + 1, kMaxMembers>();
  } else {
    return kCount;
  }
}

}  // namespace members_detail

/// Number of non-static data members of T, an aggregate without base classes or array members and
/// with at most 64 of them.
template <class T>
constexpr size_t num_members() {
  static_assert(std::is_aggregate_v<T>);
  constexpr size_t kMaxMembers = 64;
  constexpr size_t kFound = members_detail::largest<T, 0, kMaxMembers>();
  static_assert(kFound < kMaxMembers, "too many members to count");
  return kFound;
}

}  // namespace hocket
