// SPDX-License-Identifier: Apache-2.0
// Changes a text before it is cut, step by step, and can tell where in the input each byte of the
// result comes from.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer_spec.h"

namespace hocket::data {

/// Piece of a text on its way to the model. `from` is null, or has the place in the input of each
/// byte.
struct Piece {
  std::string_view text;
  const ByteRange* from = nullptr;
  bool at_start = false;  ///< begins with the first byte of the input

  Piece part(size_t begin, size_t end) const {
    return {text.substr(begin, end - begin), from == nullptr ? nullptr : from + begin,
            at_start && begin == 0};
  }
};

/// A text that is being built, with places if they are wanted.
class Rewritten {
 public:
  /// Empties it. `source` is what it is built from.
  void start(const Piece& source);
  void reserve(size_t bytes) { text_.reserve(bytes); }
  /// Appends bytes [begin, end) of the source.
  void keep(size_t begin, size_t end);
  /// Appends bytes that stand for [begin, end) of the source.
  void put(std::string_view bytes, size_t begin, size_t end);
  Piece piece() const {
    return {text_, source_.from == nullptr ? nullptr : from_.data(), source_.at_start && !cut_};
  }

 private:
  ByteRange place(size_t begin, size_t end) const;

  Piece source_;
  std::string text_;
  std::vector<ByteRange> from_;
  bool cut_ = false;  // the first bytes of the source are gone
};

/// Immutable; safe to share between threads.
class Normalizer {
 public:
  /// Throws Error for a pattern that does not compile, and for a broken table.
  explicit Normalizer(std::vector<NormalizerStep> steps);
  ~Normalizer();
  Normalizer(Normalizer&&) noexcept;

  bool empty() const;
  /// Returns the normalised piece, a view into `source` or one of the buffers. Malformed bytes stay
  /// as they are.
  Piece apply(const Piece& source, std::array<Rewritten, 2>* buffers) const;
  std::string apply(std::string_view text) const;

 private:
  struct Step;
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace hocket::data
