// SPDX-License-Identifier: Apache-2.0
// gather_rows.
#include <cstring>

#include "base/error.h"
#include "kernels/cpu/kernels.h"

namespace hocket::kernels::HOCKET_CPU {

void gather_rows(const KernelArgs& args) {
  const std::byte* x = in<std::byte>(args, 0);
  const int32_t* rows = in<int32_t>(args, 1);
  std::byte* y = out<std::byte>(args, 0);
  const int64_t n = args.in[0].dim(0), bytes = args.in[0].dim(1) * element_bytes(args.in[0]);
  for (int64_t r = 0; r < args.in[1].dim(0); ++r) {
    if (rows[r] >= n) {
      fail_run("gather_rows", "row {}; expected less than the {} rows there are", rows[r], n);
    }
    if (rows[r] < 0) {
      std::memset(y + r * bytes, 0, static_cast<size_t>(bytes));
    } else {
      std::memcpy(y + r * bytes, x + rows[r] * bytes, static_cast<size_t>(bytes));
    }
  }
}

}  // namespace hocket::kernels::HOCKET_CPU
