// SPDX-License-Identifier: Apache-2.0
// How far results are from what they should be, and what runs of tests are told from outside.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace hocket::test {

/// |a - b| / |b| (absolute if b is zero); infinite on NaN or other sizes.
inline double relative_l2(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double diff = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    diff += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  if (std::isnan(diff)) return INFINITY;
  return norm > 0 ? std::sqrt(diff / norm) : std::sqrt(diff);
}

/// A number that says how much to try, or which: HOCKET_MUTANTS, HOCKET_SEED, ..
inline uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace hocket::test
