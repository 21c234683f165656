// SPDX-License-Identifier: Apache-2.0
// Detection of checkpoint data that a run needs and this host does not store.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/intervals.h"
#include "checkpoint/checkpoint.h"

namespace hocket::checkpoint {

/// Collects the elements that a process will read from a partial checkpoint, and reports those
/// stored on other hosts only.
class MissingParts {
 public:
  /// Requires: `from` outlives this object.
  explicit MissingParts(const Checkpoint& from);

  /// Records that elements [first, first + count) of a parameter will be read.
  void need_param(std::string_view name, int64_t first, int64_t count);
  /// Records the same for an optimizer state.
  void need_optimizer(std::string_view name, const graph::TensorType& type, int64_t first,
                      int64_t count);
  /// Describes the needed elements that are not on this host: tensor, range, and the rank and host
  /// that wrote them. Empty if nothing is missing.
  std::string text() const;

 private:
  /// Byte ranges of a file's parts, sorted by their first byte.
  struct Index {
    struct Entry {
      Range range;
      const Part* part = nullptr;
      int64_t furthest = 0;  ///< largest end of this range and of all ranges before it
    };
    std::vector<Entry> entries;
    explicit Index(const FileRecord& file);
    /// Calls `use` for every entry that may have bytes of [begin, end).
    template <class Use>
    void for_each(int64_t begin, int64_t end, const Use& use) const;
  };
  struct Missing {
    std::string tensor;
    int64_t first = 0, last = 0;  ///< first and last element of the first missing run
    std::string writer;           ///< rank and host that wrote that run
    int64_t elements = 0;         ///< number of missing elements in all runs
  };
  void need(std::string_view name, const TensorFiles::Entry& entry, const models::WeightRun& run);
  const Intervals& here(const Index& index, const TensorFiles::Entry& entry);
  std::string writer_of(const Index& index, int64_t byte) const;

  const Checkpoint& from_;
  Index model_, optimizer_;
  const StoredTensor* known_ = nullptr;  ///< tensor with the intervals cached in `here_`
  Intervals here_;
  std::vector<Missing> missing_;
};

}  // namespace hocket::checkpoint
