// SPDX-License-Identifier: Apache-2.0
// Codecs: to codes and back.
#include <cmath>
#include <cstring>

#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

namespace {

void copy_bytes(const KernelArgs& args) {
  std::memcpy(args.out[0].as<std::byte>(), args.in[0].as<std::byte>(),
              static_cast<size_t>(args.in[0].type->bytes()));
}

/// Rows, as dim 0 counts them, and their elements.
struct RowsOf {
  explicit RowsOf(const TensorRef& operand)
      : rows(operand.dim(0)), row(rows == 0 ? 0 : count(operand) / rows) {}
  int64_t rows, row;
};

}  // namespace

void encode_identity(const KernelArgs& args) { copy_bytes(args); }
void decode_identity(const KernelArgs& args) { copy_bytes(args); }

template <typename T>
void encode_int8(const KernelArgs& args) {
  const RowsOf x(args.in[0]);
  const T* from = in<T>(args, 0);
  int8_t* codes = out<int8_t>(args, 0);
  float* scales = out<float>(args, 1);
  parallel_for(x.rows, row_grain(x.row), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T most = 0;
      for (int64_t i = r * x.row; i < (r + 1) * x.row; ++i) {
        most = std::max(most, std::abs(from[i]));
      }
      scales[r] = static_cast<float>(most / 127);
      const T factor = scales[r] > 0 ? 1 / static_cast<T>(scales[r]) : T(0);
      for (int64_t i = r * x.row; i < (r + 1) * x.row; ++i) {
        codes[i] = static_cast<int8_t>(std::clamp<T>(std::nearbyint(from[i] * factor), -127, 127));
      }
    }
  });
}

template <typename T>
void decode_int8(const KernelArgs& args) {
  const RowsOf x(args.out[0]);
  const int8_t* codes = in<int8_t>(args, 0);
  const float* scales = in<float>(args, 1);
  T* to = out<T>(args, 0);
  parallel_for(x.rows, row_grain(x.row), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T scale = static_cast<T>(scales[r]);
      for (int64_t i = r * x.row; i < (r + 1) * x.row; ++i) {
        to[i] = static_cast<T>(codes[i]) * scale;
      }
    }
  });
}

HOCKET_KERNEL(encode_int8)
HOCKET_KERNEL(decode_int8)

}  // namespace hocket::kernels::HOCKET_CPU
