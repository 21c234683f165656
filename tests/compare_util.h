// SPDX-License-Identifier: Apache-2.0
// How far results are from what they should be, and what runs of tests are told from outside.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

extern "C" void __asan_init() __attribute__((weak));
extern "C" void __tsan_init() __attribute__((weak));

namespace hocket::test {

/// |a - b|; infinite on NaN or other sizes.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    squares += (a[i] - b[i]) * (a[i] - b[i]);
  }
  return std::isnan(squares) ? INFINITY : std::sqrt(squares);
}

/// |a - b| / |b| (absolute if b is zero); infinite on NaN or other sizes.
inline double relative_l2(const std::vector<double>& a, const std::vector<double>& b) {
  const double apart = distance(a, b), norm = distance(b, std::vector<double>(b.size()));
  return norm > 0 && apart < INFINITY ? apart / norm : apart;
}

/// Whether what is tested is watched by AddressSanitizer, or by any. Test sources are the same
/// objects in every build (tests/CMakeLists.txt), so that only what they are linked with can say.
inline bool has_address_sanitizer() { return &::__asan_init != nullptr; }
inline bool is_sanitized() { return has_address_sanitizer() || &::__tsan_init != nullptr; }
/// How many of `all` random cases to try: sanitizers make one about eight times as slow, and look
/// at what code does rather than at which numbers come out.
inline uint64_t fewer(uint64_t all) { return is_sanitized() ? (all + 7) / 8 : all; }

/// HOCKET_LONG=1: whether what takes minutes is tried in full, too.
inline bool is_long() {
  const char* const text = std::getenv("HOCKET_LONG");
  return text && *text && std::string_view(text) != "0";
}
/// How many of `all` cases a test tries whose all take minutes: a third, unless HOCKET_LONG=1 asks
/// for all.
inline uint64_t sampled(uint64_t all) { return is_long() ? all : (all + 2) / 3; }

/// A number that says how much to try, or which: HOCKET_MUTANTS, HOCKET_SEED, ..
inline uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace hocket::test
