// SPDX-License-Identifier: Apache-2.0
// What a run needs of a checkpoint that lies on several hosts, and this host has not.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/intervals.h"
#include "checkpoint/checkpoint.h"

namespace hocket::checkpoint {

class MissingParts {
 public:
  /// `from` outlives it.
  explicit MissingParts(const Checkpoint& from);

  /// Notes that elements [first, first + count) of a parameter will be read.
  void need_param(std::string_view name, int64_t first, int64_t count);
  /// Of an optimizer state.
  void need_optimizer(std::string_view name, const graph::TensorType& type, int64_t first,
                      int64_t count);
  /// What of all this is not here: elements of which tensors, by which rank they were written, on
  /// which host. Empty: nothing.
  std::string text() const;

 private:
  /// The ranges of a file's parts, by their beginning.
  struct Index {
    struct Entry {
      Range range;
      const Part* part = nullptr;
      int64_t furthest = 0;  ///< the end of this range and of all before it
    };
    std::vector<Entry> entries;
    explicit Index(const FileRecord& file);
    /// Calls `use` for every entry that may have bytes of [begin, end).
    template <class Use>
    void for_each(int64_t begin, int64_t end, const Use& use) const;
  };
  struct Missing {
    std::string tensor;
    int64_t first = 0, last = 0;  ///< of the first run that is missing
    std::string writer;           ///< of that
    int64_t elements = 0;         ///< of all runs
  };
  void need(std::string_view name, const Safetensors::Entry& entry, int64_t offset, int64_t first,
            int64_t count);
  const Intervals& here(const Index& index, const Safetensors::Entry& entry);
  std::string writer_of(const Index& index, int64_t byte) const;

  const Checkpoint& from_;
  Index model_, optimizer_;
  const StoredTensor* known_ = nullptr;  ///< whose bytes `here_` has
  Intervals here_;
  std::vector<Missing> missing_;
};

}  // namespace hocket::checkpoint
