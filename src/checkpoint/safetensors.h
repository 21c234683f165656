// SPDX-License-Identifier: Apache-2.0
// Safetensors files (https://github.com/huggingface/safetensors, "Format"): 8 bytes length N, N
// bytes of JSON {name: {dtype, shape, data_offsets}}, then the tensors without gaps. The reader
// trusts nothing in the file and reads only what is asked for; the writer streams.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "graph/tensor_type.h"

namespace hocket::checkpoint {

/// What transformers calls the files of a model folder, and what lies beside them.
inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kConfigFile = "config.json";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
/// What holds some of the bytes of the two, at their places, and zeros elsewhere: no
/// reader may take them for the whole.
inline constexpr const char* kModelPartFile = "model.part.safetensors";
inline constexpr const char* kOptimizerPartFile = "optimizer.part.safetensors";

/// Element types of the format that have a whole number of bytes. Only some can be converted: see
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
const char* to_string(StoredType type);  ///< as in the file: "F32", "BOOL"
StoredType stored_type(graph::DType dtype);

struct StoredTensor {
  std::string name;
  StoredType type = StoredType::f32;
  graph::Dims dims;
  int64_t begin = 0;  ///< first byte, from the start of the file
  int64_t numel = 1;
  int64_t bytes() const { return numel * size_of(type); }
};

/// One file, open. Error (bad input, with the file's name) from the constructor: not a file,
/// header longer than the file or 100 MB, bad JSON, duplicate names, unknown types, sizes that
/// overflow, offsets that overlap, leave gaps or exceed the file, bytes missing or left over at the
/// end.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  /// In the order of their bytes.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  const StoredTensor* find(std::string_view name) const;  ///< null when absent
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Elements [first, first + count) as `dtype`. To f32, f64, bf16 and f16 from F32, F64, BF16, F16
  /// (rounding to nearest even where bits are lost, exact otherwise); to i32 and i64 from I64, I32,
  /// U8, BOOL (Error if a value does not fit). Error (exit code 1): the file was cut off since it
  /// was opened.
  void read(const StoredTensor& tensor, int64_t first, int64_t count, graph::DType dtype,
            void* dst) const;

 private:
  RandomFile file_;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// The tensors of a model: one file, or the shards that `<name>.index.json` lists.
class Safetensors {
 public:
  struct Entry {
    const SafetensorsFile* file = nullptr;
    const StoredTensor* tensor = nullptr;
  };

  Safetensors() = default;
  /// `path`: a .safetensors file, an .index.json, or a folder with model.safetensors or
  /// model.safetensors.index.json. Error also: shards that are absent, lack a tensor of the index,
  /// or hold one that another shard holds.
  explicit Safetensors(const std::string& path);

  const std::string& path() const { return path_; }
  Entry find(std::string_view name) const;  ///< nulls when absent
  std::vector<std::string> names() const;   ///< sorted
  /// All of a tensor; `numel` guards the destination. Error: absent.
  void read(std::string_view name, graph::DType dtype, int64_t numel, void* dst) const;

 private:
  void add_file(const std::string& path);

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Entry, std::less<>> entries_;
};

/// True if the folder holds model.safetensors or its index.
bool has_safetensors(const std::string& folder);

/// A whole, unsharded tensor to write. If `data` is null, `read` is asked for runs of its elements
/// in order (a tensor that lies in pieces).
struct NamedTensor {
  std::string name;
  graph::TensorType type;
  const void* data = nullptr;
  std::function<void(int64_t first, int64_t count, void* dst)> read = nullptr;
};

/// Where tensors lie in a file: larger element types first, then by name, so that every one is
/// aligned.
struct FileLayout {
  std::string header;          ///< the bytes before the first tensor
  std::vector<size_t> order;   ///< of the tensors as they were given, how they follow each other
  std::vector<int64_t> begin;  ///< by tensor as given: its first byte, from the start of the file
  int64_t bytes = 0;           ///< of the whole file
};
/// Of tensors with or without data. The metadata {"format": "pt"} that transformers asks for is
/// added.
FileLayout lay_out(const std::vector<NamedTensor>& tensors,
                   std::map<std::string, std::string> metadata = {});

/// Writes a whole file. Returns the bytes written.
int64_t write_safetensors(FileWriter& out, const std::vector<NamedTensor>& tensors,
                          std::map<std::string, std::string> metadata = {});

/// As above, to `path` by write_output: complete or not at all.
void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                      std::map<std::string, std::string> metadata = {});

}  // namespace hocket::checkpoint
