// SPDX-License-Identifier: Apache-2.0
#include "graph/elements.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/small_float.h"

namespace hocket::graph {

namespace {

template <typename T, typename Real>
void read_as(const void* from, std::span<Real> to) {
  const auto* elements = static_cast<const Stored<T>*>(from);
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = static_cast<Real>(number<T>(elements[i]));
  }
}

template <typename T>
void write_as(std::span<const float> from, void* to) {
  auto* elements = static_cast<Stored<T>*>(to);
  for (size_t i = 0; i < from.size(); ++i) {
    elements[i] = T::encode(from[i]);
  }
}

template <typename Real>
void read(DType dtype, const void* from, std::span<Real> to) {
  switch (dtype) {
    case DType::f32:
      return read_as<float>(from, to);
    case DType::f64:
      return read_as<double>(from, to);
    case DType::bf16:
      return read_as<Bf16>(from, to);
    case DType::f16:
      return read_as<F16>(from, to);
    default:
      HOCKET_CHECK(false, "numbers of {}", to_string(dtype));
  }
}

}  // namespace

void read_numbers(DType dtype, const void* from, std::span<float> to) { read(dtype, from, to); }
void read_numbers(DType dtype, const void* from, std::span<double> to) { read(dtype, from, to); }

void write_numbers(std::span<const float> from, DType dtype, void* to) {
  switch (dtype) {
    case DType::f32:
      std::memcpy(to, from.data(), from.size_bytes());
      return;
    case DType::f64:
      std::ranges::copy(from, static_cast<double*>(to));
      return;
    case DType::bf16:
      return write_as<Bf16>(from, to);
    case DType::f16:
      return write_as<F16>(from, to);
    default:
      HOCKET_CHECK(false, "numbers as {}", to_string(dtype));
  }
}

}  // namespace hocket::graph
