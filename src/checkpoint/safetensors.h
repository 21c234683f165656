// SPDX-License-Identifier: Apache-2.0
// Safetensors files (https://github.com/huggingface/safetensors, "Format"): 8 bytes with the header
// length N, N bytes of JSON {name: {dtype, shape, data_offsets}}, then the tensors without gaps.
// The reader validates everything and reads only the requested ranges; the writer streams.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "graph/tensor_type.h"

namespace hocket::checkpoint {

/// Files of a model folder, named as transformers expects, and the optimizer's beside them.
inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
/// Files that hold some of the bytes at their offsets, and zeros elsewhere. The names differ so
/// that no reader mistakes them for whole files.
inline constexpr const char* kModelPartFile = "model.part.safetensors";
inline constexpr const char* kOptimizerPartFile = "optimizer.part.safetensors";

/// Element types of the format with a whole number of bytes. Only some are converted: see
/// `SafetensorsFile::read`.
enum class StoredType : uint8_t {
  f32,
  f64,
  bf16,
  f16,
  i64,
  i32,
  i16,
  i8,
  u64,
  u32,
  u16,
  u8,
  boolean,
  f8_e4m3,
  f8_e5m2
};
int64_t size_of(StoredType type);
const char* to_string(StoredType type);  ///< in the format's spelling: "F32", "BOOL"
StoredType stored_type(graph::DType dtype);
/// Returns the floating-point type that weights of a type are read as without loss; nothing for a
/// type that is not read as one.
std::optional<graph::DType> floating_type(StoredType type);
/// Returns the smallest type that holds the numbers of both floating-point types.
graph::DType common_type(graph::DType a, graph::DType b);

/// Tensor of a file: its type, shape and position.
struct StoredTensor {
  std::string name;
  StoredType type = StoredType::f32;
  graph::Dims dims;
  int64_t begin = 0;  ///< first byte, from the start of the file
  int64_t numel = 1;
  int64_t bytes() const { return numel * size_of(type); }
};

/// An open file of tensors, by name.
class TensorFile {
 public:
  virtual ~TensorFile() = default;
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  virtual const std::string& path() const = 0;
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* find(std::string_view name) const;  ///< null when absent

  /// Reads elements [first, first + count) as `dtype`. Floating-point types convert into each
  /// other, exactly or rounded to nearest even. Throws Error (exit code 1) if the file was
  /// truncated after it was opened.
  virtual void read(const StoredTensor& tensor, int64_t first, int64_t count, graph::DType dtype,
                    void* dst) const = 0;

 protected:
  TensorFile() = default;
  /// Requires: no name is there twice.
  void set_tensors(std::vector<StoredTensor> tensors);

 private:
  std::vector<StoredTensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

/// An open safetensors file; its tensors are in the order of their offsets. The constructor throws
/// Error (bad input, with the file's name): not a file, header longer than the file or 100 MB, bad
/// JSON, duplicate names, unknown types; sizes that overflow; offsets that overlap, leave gaps or
/// exceed the file; bytes missing or left over at the end.
class SafetensorsFile : public TensorFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const override { return file_.path(); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Converts F32, F64, BF16 and F16 to f32, f64, bf16 and f16; I64, I32, U8 and BOOL to i32 and
  /// i64. Throws Error if a value does not fit.
  void read(const StoredTensor& tensor, int64_t first, int64_t count, graph::DType dtype,
            void* dst) const override;

 private:
  RandomFile file_;
  std::map<std::string, std::string> metadata_;
};

/// Tensors of a model: one file, or the shards that `<name>.index.json` lists.
class TensorFiles {
 public:
  struct Entry {
    const TensorFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
  };

  TensorFiles() = default;
  /// Tensors of a file of another format.
  explicit TensorFiles(std::unique_ptr<TensorFile> file);
  /// Opens `path`: a .safetensors file, an .index.json, or a folder with model.safetensors or
  /// model.safetensors.index.json. Throws Error as SafetensorsFile does, and for shards that are
  /// absent, or hold a tensor that another shard holds, or should hold by the index.
  explicit TensorFiles(const std::string& path);

  const std::string& path() const { return path_; }
  Entry find(std::string_view name) const;  ///< nulls when absent
  std::vector<std::string> names() const;   ///< sorted
  /// Tensors that the index names and no shard holds, with the shards that should.
  const std::map<std::string, std::string, std::less<>>& absent() const { return absent_; }
  /// Reads a whole tensor. Throws Error if it is absent, or not of `numel` elements, the size of
  /// the destination.
  void read(std::string_view name, graph::DType dtype, int64_t numel, void* dst) const;

 private:
  void add_file(std::unique_ptr<TensorFile> opened);

  std::string path_;
  std::vector<std::unique_ptr<TensorFile>> files_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::map<std::string, std::string, std::less<>> absent_;
};

/// Returns whether the folder holds model.safetensors or its index.
bool has_safetensors(const std::string& folder);

/// Whole, unsharded tensor to write. If `data` is null, `read` is called for consecutive ranges of
/// its elements, for a tensor that is scattered in memory.
struct NamedTensor {
  std::string name;
  graph::TensorType type;
  const void* data = nullptr;
  std::function<void(int64_t first, int64_t count, void* dst)> read = nullptr;
};

/// Offsets of tensors in a file. Larger element types come first, then names in order, so that
/// every tensor is aligned.
struct FileLayout {
  std::string header;          ///< the bytes before the first tensor
  std::vector<size_t> order;   ///< the order of tensors in the file, as indices into the given list
  std::vector<int64_t> begin;  ///< offset of each given tensor from the start of the file
  int64_t bytes = 0;           ///< size of the whole file
};
/// Lays out tensors; their data is not needed. Adds the metadata {"format": "pt"}, which
/// transformers requires.
FileLayout lay_out(const std::vector<NamedTensor>& tensors,
                   std::map<std::string, std::string> metadata = {});

/// Writes a whole file and returns its size in bytes.
int64_t write_safetensors(FileWriter& out, const std::vector<NamedTensor>& tensors,
                          std::map<std::string, std::string> metadata = {});

/// Writes a whole file to `path` by write_output: complete or not at all.
void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                      std::map<std::string, std::string> metadata = {});

}  // namespace hocket::checkpoint
