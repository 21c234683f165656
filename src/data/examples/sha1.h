// SPDX-License-Identifier: Apache-2.0
// SHA-1 (RFC 3174) of files, which registries of data sets name. Not for security.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hocket::data {

/// Incremental SHA-1.
class Sha1 {
 public:
  void add(std::string_view bytes);
  /// Returns 40 lower-case hexadecimal digits. Nothing may be added later.
  std::string hex();

 private:
  static constexpr size_t kBlock = 64;  // bytes
  void take_block();

  std::array<uint32_t, 5> state_ = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  std::array<uint8_t, kBlock> block_ = {};
  size_t filled_ = 0;   // bytes of the block
  uint64_t bytes_ = 0;  // in all
};

/// Returns the SHA-1 of a file. Error: as read_file (base/file.h).
std::string sha1_of_file(const std::string& path);

}  // namespace hocket::data
