// SPDX-License-Identifier: Apache-2.0
// Views: buffers that are parts of others, which of them have memory in common, and where they lie.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/program.h"

namespace hocket::program {

/// Where a view begins, in bytes from the beginning of its base, on a rank of its class.
int64_t byte_offset(const Program& program, const RankClass& cls, const Buffer& view, int32_t rank);
/// Elements between neighbours of each dim of a view. Empty if it has no gaps.
std::vector<int64_t> strides_of(const RankClass& cls, const Buffer& view);

/// The views of a class. Bases, dims and tables must exist, and regions lie inside their bases.
class Views {
 public:
  Views(const Program& program, ClassId cls);

  bool any() const { return any_; }
  /// The other buffers that have memory in common with this one on some rank of the class: of a
  /// base all its views, of a view its base and the views of it that overlap.
  std::span<const BufferId> meets(BufferId buffer) const {
    if (!any_) return {};
    return meets_[buffer];
  }

 private:
  bool any_ = false;
  std::vector<std::vector<BufferId>> meets_;
};

}  // namespace hocket::program
