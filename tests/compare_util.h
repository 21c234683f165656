// SPDX-License-Identifier: Apache-2.0
// Distances between results and expected values, and settings of test runs from the environment.
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

/// Returns whether the program runs under AddressSanitizer, or under any sanitizer. Test sources
/// are the same objects in every build (tests/CMakeLists.txt), so only the linked runtime shows it.
inline bool has_address_sanitizer() { return &::__asan_init != nullptr; }
inline bool has_thread_sanitizer() { return &::__tsan_init != nullptr; }
inline bool is_sanitized() { return has_address_sanitizer() || has_thread_sanitizer(); }

/// Returns whether HOCKET_LONG=1 asks for tests that take minutes.
inline bool is_long() {
  const char* const text = std::getenv("HOCKET_LONG");
  return text && *text && std::string_view(text) != "0";
}
/// Returns how many of `all` random cases to try: a third, unless HOCKET_LONG=1 asks for all.
/// Sanitizers make one about eight times slower, and check the code's behaviour rather than its
/// numbers.
inline uint64_t fewer(uint64_t all) {
  if (is_sanitized()) return (all + 7) / 8;
  return is_long() ? all : (all + 2) / 3;
}
/// Returns how many of `all` cases to try in a test that takes minutes: a fifth, unless
/// HOCKET_LONG=1 asks for all.
inline uint64_t sampled(uint64_t all) { return is_long() ? all : (all + 4) / 5; }

/// A number that says how much to try, or which: HOCKET_MUTANTS, HOCKET_SEED, ..
inline uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace hocket::test
