// SPDX-License-Identifier: Apache-2.0
// dropout, forward and backward alike. Element (token, column) is number i = token * width + column
// of the stream, and kept if word i % 4 of block i / 4 is at least p 2^32: four neighbours share a
// block of random bits.
#include <array>
#include <cmath>
#include <cstdint>

#include "base/rng.h"
#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

template <typename T>
void dropout(const KernelArgs& args) {
  const T* x = in<T>(args, 0);
  const int64_t* token = in<int64_t>(args, 1);
  T* y = out<T>(args, 0);
  const bool heads = args.in[0].type->dims.size() == 3;
  const int64_t tokens = args.in[0].dim(0);
  const int64_t columns = args.in[0].dim(1) * (heads ? args.in[0].dim(2) : 1);
  const int64_t first =
      heads ? piece_offset(args, 'h') * args.in[0].dim(2) : piece_offset(args, 'd');
  const auto width = static_cast<uint64_t>(args.attrs->i("width"));
  const auto seed = static_cast<uint64_t>(args.attrs->i("seed"));
  const auto stream = static_cast<uint64_t>(args.attrs->i("stream"));
  const double p = args.attrs->f("p");
  const T scale = static_cast<T>(1 / (1 - p));
  const auto least = static_cast<uint64_t>(std::llround(p * 0x1p32));
  parallel_for(tokens, row_grain(columns), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const T* from = x + t * columns;
      T* to = y + t * columns;
      uint64_t number = static_cast<uint64_t>(token[t]) * width + static_cast<uint64_t>(first);
      for (int64_t c = 0; c < columns;) {
        const std::array<uint32_t, 4> bits = random_block(seed, stream, number / 4);
        for (uint64_t word = number % 4; word < 4 && c < columns; ++word, ++c, ++number) {
          to[c] = bits[word] >= least ? from[c] * scale : T{0};
        }
      }
    }
  });
}

HOCKET_KERNEL(dropout)

}  // namespace hocket::kernels::HOCKET_CPU
