// SPDX-License-Identifier: Apache-2.0
// add, copy, zero.
#include <cstring>

#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

template <typename T>
void add(const KernelArgs& args) {
  const T *a = in<T>(args, 0), *b = in<T>(args, 1);
  T* c = out<T>(args, 0);
  parallel_for(count(args.out[0]), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) c[i] = a[i] + b[i];
  });
}

void copy(const KernelArgs& args) {
  const std::byte* from = in<std::byte>(args, 0);
  std::byte* to = out<std::byte>(args, 0);
  parallel_for(args.out[0].type->bytes(), kGrain * 4, [&](int64_t begin, int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  });
}

void zero(const KernelArgs& args) {
  std::byte* to = out<std::byte>(args, 0);
  parallel_for(args.out[0].type->bytes(), kGrain * 4, [&](int64_t begin, int64_t end) {
    std::memset(to + begin, 0, static_cast<size_t>(end - begin));
  });
}

HOCKET_KERNEL(add)

}  // namespace hocket::kernels::HOCKET_CPU
