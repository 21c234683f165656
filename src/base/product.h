// SPDX-License-Identifier: Apache-2.0
// Products of numbers that others wrote, which may be too large.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>

namespace hocket {

/// Returns the product, saturated at the largest integer.
constexpr int64_t product_at_most(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) {
      return std::numeric_limits<int64_t>::max();
    }
  }
  return product;
}

}  // namespace hocket
