// SPDX-License-Identifier: Apache-2.0
// Bytes of a data file in order: plain, unpacked from gzip or zstd, or the rows of a table.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace hocket::data {

/// A text that is read once, from its beginning.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills `to` with the next bytes and returns their number, 0 at the end only. Throws Error for a
  /// file that is damaged or cut off.
  virtual size_t read(char* to, size_t bytes) = 0;
};

/// Returns the name without the ending of a compression, .gz, .zst or .zstd.
std::string without_compression(const std::string& path);

/// Opens a file; a name that ends with .gz, .zst or .zstd is unpacked.
std::unique_ptr<ByteSource> open_bytes(const std::string& path);

/// Opens a Parquet file: its rows as JSON Lines, made by a Python process that needs pyarrow. The
/// interpreter is $HOCKET_PYTHON, else python3.
std::unique_ptr<ByteSource> open_table(const std::string& path);

}  // namespace hocket::data
