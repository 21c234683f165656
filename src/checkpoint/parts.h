// SPDX-License-Identifier: Apache-2.0
// Files that several ranks write at once, each its own part, and the checksums of these parts.
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

/// Of a file that is read or copied at a time.
inline constexpr int64_t kPieceBytes = int64_t{1} << 20;

/// What the ranks of this process write into a file that is there in its full length. Holds a
/// buffer, whatever the ranks have.
class PartsWriter {
 public:
  PartsWriter(const std::string& path, int32_t host);
  /// Bytes of the rank for the place `at`. What follows what any rank wrote last goes to the disk
  /// together with it.
  void put(int32_t rank, int64_t at, std::string_view bytes);
  /// Waits until all is on the disk and returns what was written. A rank that wrote much has
  /// several parts, so that many can compare them.
  std::vector<Part> finish();

 private:
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

/// Whether the file still has what was written. Error: it does not reach that far, or the disk.
bool is_intact(const RandomFile& file, const Part& part);

}  // namespace hocket::checkpoint
