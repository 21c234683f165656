// SPDX-License-Identifier: Apache-2.0
// Writing of a file by several ranks at once, each rank its own parts, with a checksum per part.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/hash.h"
#include "checkpoint/record.h"

namespace hocket::checkpoint {

/// Bytes that are read or copied at a time.
inline constexpr int64_t kPieceBytes = int64_t{1} << 20;

/// Writer of this process's ranks into a file that already has its full length. Uses one buffer,
/// however many ranks there are.
class PartsWriter {
 public:
  PartsWriter(const std::string& path, int32_t host);
  /// Writes bytes of the rank at offset `at`. Consecutive writes, of whichever rank, are merged
  /// into one disk write.
  void put(int32_t rank, int64_t at, std::string_view bytes);
  /// Waits until everything is on disk and returns the written parts. A rank with much data has
  /// several parts, so that several processes can compare them.
  std::vector<Part> finish();

 private:
  /// Part that is still being written.
  struct Open {
    Part part;
    int64_t bytes = 0;
    Hasher hasher;
  };
  void close(int32_t rank);

  FileWriter out_;
  int32_t host_;
  std::map<int32_t, std::unique_ptr<Open>> open_;  ///< by rank
  std::vector<Part> done_;
};

/// Returns whether the file still matches the checksum of the part. Throws Error if the file is too
/// short, and for errors of the disk.
bool is_intact(const RandomFile& file, const Part& part);

}  // namespace hocket::checkpoint
