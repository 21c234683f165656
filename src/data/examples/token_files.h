// SPDX-License-Identifier: Apache-2.0
// Documents that Megatron-LM tokenized: PREFIX.idx (lengths and places) and PREFIX.bin (ids).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"

namespace hocket::data {

class TokenFiles {
 public:
  /// Reads the head. Throws Error for another magic, version or type of ids, and for sizes that do
  /// not fit.
  explicit TokenFiles(const std::string& prefix);

  int64_t documents() const { return documents_; }
  /// Returns the bytes of a document, from 0. Throws Error for places outside of the file.
  int64_t bytes_of(int64_t document);
  /// Returns the ids of a document, its sequences one after the other. Throws Error for an id that
  /// is negative or beyond 32 bits.
  std::vector<int32_t> read(int64_t document);

 private:
  /// Numbers of the index, read in blocks.
  struct Column {
    int64_t begin = 0, count = 0, bytes = 0;  ///< place, numbers, and bytes of one
    int64_t first = 0;                        ///< of the block
    std::string block;
  };
  int64_t number(Column* column, int64_t at);
  void check_sizes();
  [[noreturn]] void broken(const std::string& what) const;

  RandomFile index_, ids_;
  int64_t id_bytes_ = 0;
  bool signed_ids_ = false;
  int64_t documents_ = 0;
  Column lengths_, places_, ends_;
};

}  // namespace hocket::data
