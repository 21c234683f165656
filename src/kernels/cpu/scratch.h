// SPDX-License-Identifier: Apache-2.0
// The workspace of one kernel call, handed out front to back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "base/math.h"
#include "kernels/abi.h"

namespace hocket::kernels::HOCKET_CPU {

/// A bump allocator over KernelArgs::workspace; blocks are 64-byte aligned. Copies are independent
/// (pass by value to reuse the rest for one call).
class Scratch {
 public:
  Scratch(std::byte* begin, int64_t bytes) : at_(begin), left_(bytes) {}
  explicit Scratch(const KernelArgs& args) : at_(args.workspace), left_(args.workspace_bytes) {}

  int64_t left() const { return left_; }
  std::byte* rest() const { return at_; }

  template <typename T>
  T* take(int64_t n) {
    int64_t bytes = round_up(n * static_cast<int64_t>(sizeof(T)), 64);
    if (bytes > left_) {
      fail_run("kernel",
               "needs {} more bytes of workspace; got {}; its declared workspace is too "
               "small for these shapes",
               bytes, left_);
    }
    T* p = reinterpret_cast<T*>(at_);
    at_ += bytes;
    left_ -= bytes;
    return p;
  }

 private:
  std::byte* at_;
  int64_t left_;
};

}  // namespace hocket::kernels::HOCKET_CPU
