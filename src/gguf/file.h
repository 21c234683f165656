// SPDX-License-Identifier: Apache-2.0
// GGUF files (ggml's format for models): "GGUF", u32 version, u64 tensors, u64 keys; the metadata;
// per tensor name, dims, type and offset; then the data, aligned. Everything is little-endian. The
// reader checks every number against the file before it uses it, and reads data by range.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "gguf/blocks.h"
#include "gguf/metadata.h"
#include "graph/tensor_type.h"

namespace hocket::gguf {

inline constexpr std::string_view kMagic = "GGUF";
inline constexpr uint32_t kVersion = 3;
inline constexpr int64_t kDefaultAlignment = 32;
inline constexpr const char* kAlignmentKey = "general.alignment";
inline constexpr size_t kMaxRank = 4;

/// Tensor of a file. The dims are in the order of other formats, the slowest first: the file has
/// them reversed.
struct StoredTensor {
  std::string name;
  ElementType type = ElementType::f32;
  graph::Dims dims;
  int64_t numel = 1;
  int64_t begin = 0;  ///< first byte, from the start of the file
  int64_t bytes() const {
    const BlockFormat& format = format_of(type);
    return numel / format.elements * format.bytes;
  }
};

/// Returns whether `path` is a file that begins as a GGUF file does.
bool is_gguf(const std::string& path);

/// An open file. Reading is safe from several threads.
class File {
 public:
  /// Throws Error (bad input, with the file and the field) for all but whole GGUF files of version
  /// 2 or 3. Counts, lengths, types and dims must be such that the file can hold them. Keys and
  /// tensors are there once; tensors follow each other, and have element types that are read.
  explicit File(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const Metadata& metadata() const { return metadata_; }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* find(std::string_view name) const;  ///< null when absent

  /// Reads elements [first, first + count) as f32, f64, bf16 or f16: the number that the blocks
  /// stand for plus `add`, in f32, rounded once. Throws Error (exit code 1) if the file was
  /// truncated after it was opened.
  void read(const StoredTensor& tensor, int64_t first, int64_t count, graph::DType dtype, void* dst,
            float add = 0) const;

 private:
  RandomFile file_;
  Metadata metadata_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

}  // namespace hocket::gguf
