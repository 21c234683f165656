// SPDX-License-Identifier: Apache-2.0
// add, copy, zero.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

template <typename T>
void add_as(const KernelArgs& args) {
  const T *a = in<T>(args, 0), *b = in<T>(args, 1);
  T* c = out<T>(args, 0);
  parallel_for(count(args.out[0]), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) c[i] = a[i] + b[i];
  });
}
/// Adds numbers, also row numbers, which are integers whatever T is.
template <typename T>
void add(const KernelArgs& args) {
  if (args.out[0].type->dtype == graph::DType::i64) {
    add_as<int64_t>(args);
  } else {
    add_as<T>(args);
  }
}

/// Elements between neighbours of a dim.
int64_t stride(const TensorRef& operand, size_t dim) {
  if (operand.strides) return operand.strides[dim];
  int64_t elements = 1;
  for (size_t i = dim + 1; i < operand.type->dims.size(); ++i) {
    elements *= operand.type->dims[i];
  }
  return elements;
}

void copy(const KernelArgs& args) {
  // Runs without gaps on both sides are copied whole; they are numbered over the dims before them.
  const TensorRef& from = args.in[0];
  const TensorRef& to = args.out[0];
  const graph::TensorType& type = *from.type;
  if (!from.strides && !to.strides) {
    parallel_for(type.bytes(), kGrain * 4, [&](int64_t begin, int64_t end) {
      std::memcpy(to.as<std::byte>() + begin, from.as<std::byte>() + begin,
                  static_cast<size_t>(end - begin));
    });
    return;
  }
  const auto& dims = type.dims;
  size_t outer = dims.size();
  int64_t run = 1;
  while (outer > 0 && stride(from, outer - 1) == run && stride(to, outer - 1) == run) {
    run *= dims[--outer];
  }
  if (run % type.granule() != 0) {
    fail_run("kernel", "got gaps inside a block or a byte of {}; expected them between",
             to_string(type));
  }
  int64_t runs = 1;
  for (size_t dim = 0; dim < outer; ++dim) {
    runs *= dims[dim];
  }
  parallel_for(runs, std::max<int64_t>(1, kGrain / run), [&](int64_t begin, int64_t end) {
    for (int64_t number = begin; number < end; ++number) {
      int64_t source = 0;
      int64_t target = 0;
      int64_t rest = number;
      for (size_t dim = outer; dim-- > 0;) {
        const int64_t index = rest % dims[dim];
        rest /= dims[dim];
        source += index * stride(from, dim);
        target += index * stride(to, dim);
      }
      std::memcpy(to.as<std::byte>() + type.bytes_of(target),
                  from.as<std::byte>() + type.bytes_of(source),
                  static_cast<size_t>(type.bytes_of(run)));
    }
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
