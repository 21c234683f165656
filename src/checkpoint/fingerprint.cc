// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/fingerprint.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/safetensors.h"
#include "gguf/file.h"

namespace hocket::checkpoint {

namespace {

constexpr int64_t kWholeFile = int64_t{64} << 20;  ///< bytes that are read in about 10 ms
constexpr int64_t kPiece = 4096;                   ///< bytes, those of a page of the disk's cache
constexpr int64_t kPieces = 4;                     ///< of a tensor
constexpr int kFolderDepth = 3;

/// Bytes of a file.
struct Piece {
  int64_t begin = 0, bytes = 0;
};

/// Adds pieces that are spread evenly over the bytes, with the first and the last ones; all of a
/// small tensor.
void add_pieces_of(const Piece& all, std::vector<Piece>* pieces) {
  if (all.bytes <= kPieces * kPiece) {
    pieces->push_back(all);
    return;
  }
  for (int64_t i = 0; i < kPieces - 1; ++i) {
    pieces->push_back({all.begin + (all.bytes - kPiece) / (kPieces - 1) * i, kPiece});
  }
  pieces->push_back({all.begin + all.bytes - kPiece, kPiece});
}

template <class Tensors>
std::vector<Piece> pieces_of(const Tensors& tensors, int64_t file_bytes) {
  int64_t header = file_bytes;
  std::vector<Piece> pieces;
  for (const auto& tensor : tensors) {
    header = std::min(header, tensor.begin);
    add_pieces_of({tensor.begin, tensor.bytes()}, &pieces);
  }
  pieces.push_back({0, header});
  return pieces;
}

/// Returns the pieces of a large file of weights; none for one that cannot be read, and so is not
/// the model's.
std::vector<Piece> pieces_of_file(const std::string& path, int64_t bytes) {
  try {
    if (gguf::is_gguf(path)) return pieces_of(gguf::File(path).tensors(), bytes);
    return pieces_of(SafetensorsFile(path).tensors(), bytes);
  } catch (const Error&) {
    return {};
  }
}

void hash_path(const std::string& path, const std::string& name, int depth, Hasher* hasher) {
  if (is_directory(path)) {
    if (depth == 0) return;
    for (const std::string& inner : list_dir(path)) {
      hash_path(join_path(path, inner), inner, depth - 1, hasher);
    }
    return;
  }
  const auto ends = [&](const char* ending) { return name.ends_with(ending); };
  if (!ends(".json") && !ends(".jinja") && !ends(".safetensors") && !ends(".gguf")) return;
  const int64_t bytes = file_size(path);
  hasher->add(name).add(static_cast<uint64_t>(bytes));
  if (bytes <= kWholeFile) {
    hasher->add(hash_file(path).hex());
    return;
  }
  const RandomFile file(path);
  std::string text;
  for (const Piece& piece : pieces_of_file(path, bytes)) {
    text.resize(static_cast<size_t>(piece.bytes));
    file.read(piece.begin, text.data(), text.size());
    hasher->add(text);
  }
}

}  // namespace

void hash_model_files(const std::string& path, Hasher* hasher) {
  hash_path(path, file_name(path), kFolderDepth, hasher);
}

}  // namespace hocket::checkpoint
