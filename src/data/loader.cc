// SPDX-License-Identifier: Apache-2.0
#include "data/loader.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/hash.h"
#include "base/math.h"

namespace hocket::data {
namespace {

constexpr uint64_t kShuffle = 0x73687566666c65;  // "shuffle"
constexpr uint64_t kOffset = 0x6f6666736574;     // "offset"

void check_sizes(const SequenceOut& out, int64_t seq_len) {
  const size_t n = seq_len;
  HOCKET_CHECK(out.tokens.size() == n && out.targets.size() == n && out.positions.size() == n,
               "sequences of {} into rows of {}, {}, {}", seq_len, out.tokens.size(),
               out.targets.size(), out.positions.size());
}

// Fills the sequence of targets t[begin .. begin + count), with the stream as a ring; rows beyond
// count are unchanged.
void cut(const TokenStream& stream, int32_t eos, int64_t begin, int64_t count,
         const SequenceOut& out) {
  const int64_t total = stream.tokens();
  const auto read_ring = [&](int64_t at, std::span<int32_t> to) {
    const size_t first = std::min(total - at, std::ssize(to));
    stream.read(at, to.first(first));
    if (first < to.size()) {
      stream.read(0, to.subspan(first));
    }
  };
  const size_t n = count;
  read_ring(begin, out.targets.first(n));
  if (begin == 0) {
    out.tokens[0] = eos;
  } else {
    stream.read(begin - 1, out.tokens.first(1));
  }
  std::copy_n(out.targets.begin(), count - 1, out.tokens.begin() + 1);

  int64_t document = stream.document_of(begin);
  int64_t next = stream.document_begin(document + 1);
  int32_t position = 0;
  for (int64_t i = 0, at = begin; i < count; ++i, ++at, ++position) {
    if (at == next) {
      position = 0;
      document = document + 1 == stream.documents() ? 0 : document + 1;
      if (document == 0) {
        at = 0;
      }
      next = stream.document_begin(document + 1);
    }
    out.positions[i] = position;
  }
}

}  // namespace

Permutation::Permutation(uint64_t size, uint64_t key)
    : size_(size),
      key_(key),
      half_bits_(std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2)) {
  HOCKET_CHECK(size > 0 && size <= uint64_t{1} << 62, "permutation of {}", size);
}

uint64_t Permutation::operator()(uint64_t index) const {
  HOCKET_CHECK(index < size_, "index {} of {}", index, size_);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  do {
    uint64_t left = index >> half_bits_, right = index & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = hash_combine(hash_combine(key_, round), right);
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    index = left << half_bits_ | right;
  } while (index >= size_);
  return index;
}

PackedLoader::PackedLoader(std::shared_ptr<const TokenStream> stream, int64_t seq_len, int32_t eos,
                           uint64_t seed)
    : stream_(std::move(stream)), seq_len_(seq_len), eos_(eos), seed_(seed) {
  if (seq_len < 1) fail("data", "sequence length {}; expected 1 or more", seq_len);
  per_epoch_ = stream_->tokens() / seq_len;
  if (per_epoch_ == 0) {
    fail("data",
         "{} training tokens are less than one sequence of {}; try more data or a smaller "
         "sequence length",
         stream_->tokens(), seq_len);
  }
}

void PackedLoader::fill(int64_t index, const SequenceOut& out) const {
  HOCKET_CHECK(index >= 0, "sequence {}", index);
  check_sizes(out, seq_len_);
  const uint64_t epoch = index / per_epoch_, within = index % per_epoch_;
  const uint64_t key = hash_combine(seed_, epoch);
  const Permutation shuffle(per_epoch_, hash_combine(key, kShuffle));
  const int64_t offset = hash_combine(key, kOffset) % stream_->tokens();
  const int64_t begin = offset + shuffle(within) * seq_len_;
  cut(*stream_, eos_, begin % stream_->tokens(), seq_len_, out);
}

ValidLoader::ValidLoader(std::shared_ptr<const TokenStream> stream, int64_t seq_len, int32_t eos,
                         std::vector<int32_t> token_lengths)
    : stream_(std::move(stream)),
      seq_len_(seq_len),
      eos_(eos),
      token_lengths_(std::move(token_lengths)) {
  if (seq_len < 1) fail("data", "sequence length {}; expected 1 or more", seq_len);
  if (std::ssize(token_lengths_) != stream_->vocab_size()) {
    fail("data", "a tokenizer of {} tokens for shards of {}; expected the one that made them",
         token_lengths_.size(), stream_->vocab_size());
  }
  size_ = ceil_div(stream_->tokens(), seq_len);
}

int64_t ValidLoader::fill(int64_t index, const SequenceOut& out) const {
  HOCKET_CHECK(index >= 0 && index < size_, "sequence {} of {}", index, size_);
  check_sizes(out, seq_len_);
  const int64_t begin = index * seq_len_;
  const int64_t count = std::min(seq_len_, stream_->tokens() - begin);
  cut(*stream_, eos_, begin, count, out);
  int64_t bytes = 0;
  for (int64_t i = 0; i < count; ++i) {
    bytes += token_lengths_[out.targets[i]];
  }
  for (int64_t i = count; i < seq_len_; ++i) {
    out.tokens[i] = eos_;
    out.targets[i] = kIgnoredTarget;
    out.positions[i] = padding_position(i - count);
  }
  return bytes;
}

std::vector<int64_t> HeldOutRows::sample(int64_t count) const {
  count = std::min(count, size());
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) {
    indices.push_back(static_cast<int64_t>((i + 0.5) * size() / count));
  }
  return indices;
}

}  // namespace hocket::data
