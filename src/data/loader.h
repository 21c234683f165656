// SPDX-License-Identifier: Apache-2.0
// Sequences for training and evaluation, cut out of a TokenStream. The stream's tokens t[0..N) are
// the targets; the input of each is the token before it, the end of text at the stream's start. So
// the first token of a document is predicted from the end of text alone, which stands as its
// beginning (position 0), the end of text is predicted at a document's end, and every token of
// every document is predicted exactly once, from tokens of its own document only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/shards.h"

namespace hocket::data {

/// Destination of a sequence: three rows of seq_len.
struct SequenceOut {
  std::span<int32_t> tokens;
  std::span<int32_t> targets;  ///< -100: nothing to predict
  /// In the document within this sequence; 0 begins one. Padding has padding_position() instead.
  std::span<int32_t> positions;
  /// The answer that a target belongs to, where losses are of whole answers; -1 for other targets.
  /// Example a of this sequence has the answers 2 a (chosen or desirable) and 2 a + 1 (rejected or
  /// undesirable); a = 0, 1, .... Empty: the losses are of tokens.
  std::span<int32_t> answers = {};
};

inline constexpr int32_t kIgnoredTarget = -100;

/// Returns the mark of padding at this place among padding, the documents that it forms: -1, -2,
/// ....
inline int32_t padding_position(int64_t place) { return static_cast<int32_t>(-1 - place); }

/// A permutation of [0, size): a Feistel network of four rounds over the next even power of two,
/// walked until the value falls inside. Source: Black and Rogaway, "Ciphers with arbitrary finite
/// domains", CT-RSA 2002.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t key);
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t size_, key_;
  int half_bits_;
};

/// Endless training sequences; sequence i is a pure function of the data, a seed and i.
class TrainingRows {
 public:
  virtual ~TrainingRows() = default;
  virtual int64_t seq_len() const = 0;
  virtual int64_t sequences_per_epoch() const = 0;
  /// Sequence `index` >= 0; epoch index / sequences_per_epoch().
  virtual void fill(int64_t index, const SequenceOut& out) const = 0;
  /// Returns a number that sequences of the same content share, where epochs have the same ones.
  virtual int64_t identity(int64_t index) const { return index; }
};

/// Sequences of a stream; sequence i is a pure function of (stream, seed, i). An epoch visits
/// N / seq_len disjoint sequences in shuffled order. The cuts lie elsewhere in each epoch, so the
/// N mod seq_len tokens that are left out differ, too; the stream is a ring for this.
class PackedLoader : public TrainingRows {
 public:
  /// Throws Error for fewer tokens than one sequence.
  PackedLoader(std::shared_ptr<const TokenStream> stream, int64_t seq_len, int32_t eos,
               uint64_t seed);

  int64_t seq_len() const override { return seq_len_; }
  int64_t sequences_per_epoch() const override { return per_epoch_; }
  void fill(int64_t index, const SequenceOut& out) const override;

 private:
  std::shared_ptr<const TokenStream> stream_;
  int64_t seq_len_, per_epoch_;
  int32_t eos_;
  uint64_t seed_;
};

/// Held-out sequences, in order.
class HeldOutRows {
 public:
  virtual ~HeldOutRows() = default;
  virtual int64_t seq_len() const = 0;
  virtual int64_t size() const = 0;
  /// Fills sequence `index`; returns the bytes of text that its targets stand for.
  virtual int64_t fill(int64_t index, const SequenceOut& out) const = 0;
  /// `count` indices spread evenly over [0, size()), all of them if there are no more.
  std::vector<int64_t> sample(int64_t count) const;
};

/// Loads a whole stream in order, once; the last sequence is padded with ignored targets.
class ValidLoader : public HeldOutRows {
 public:
  /// `token_lengths` as Tokenizer::token_lengths.
  ValidLoader(std::shared_ptr<const TokenStream> stream, int64_t seq_len, int32_t eos,
              std::vector<int32_t> token_lengths);

  int64_t seq_len() const override { return seq_len_; }
  int64_t size() const override { return size_; }
  /// Returns the bytes of the whole split, the divisor of bits per byte.
  int64_t bytes() const { return stream_->bytes(); }
  /// Fills a row; the sum of the bytes over all sequences is bytes().
  int64_t fill(int64_t index, const SequenceOut& out) const override;

 private:
  std::shared_ptr<const TokenStream> stream_;
  int64_t seq_len_, size_;
  int32_t eos_;
  std::vector<int32_t> token_lengths_;
};

}  // namespace hocket::data
