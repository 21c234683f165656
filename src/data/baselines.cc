// SPDX-License-Identifier: Apache-2.0
#include "data/baselines.h"

#include <lzma.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace hocket::data {
namespace {

constexpr int kTokenBits = 21;

// One encoder for many texts: liblzma keeps its memory between them.
class XzEncoder {
 public:
  ~XzEncoder() { lzma_end(&stream_); }
  int64_t size(std::string_view text) {
    lzma_ret rc = lzma_easy_encoder(&stream_, 9 | LZMA_PRESET_EXTREME, LZMA_CHECK_CRC64);
    uint8_t out[1 << 14];
    stream_.next_in = reinterpret_cast<const uint8_t*>(text.data());
    stream_.avail_in = text.size();
    while (rc == LZMA_OK) {
      stream_.next_out = out;
      stream_.avail_out = sizeof out;
      rc = lzma_code(&stream_, LZMA_FINISH);
    }
    if (rc != LZMA_STREAM_END) {
      fail_run("baselines", "liblzma failed with code {} ({})", static_cast<int>(rc),
               rc == LZMA_MEM_ERROR ? "it needs 700 MB of memory" : "unexpected");
    }
    return static_cast<int64_t>(stream_.total_out);
  }

 private:
  lzma_stream stream_ = LZMA_STREAM_INIT;
};

// Least-significant-digit radix sort, 11 bits a pass, only the passes that `bits` asks for.
void radix_sort(std::vector<uint64_t>* keys, int bits) {
  constexpr int kDigit = 11;
  std::vector<uint64_t> other(keys->size());
  for (int shift = 0; shift < bits; shift += kDigit) {
    std::vector<size_t> at(size_t{1} << kDigit, 0);
    for (const uint64_t k : *keys) ++at[k >> shift & (at.size() - 1)];
    size_t sum = 0;
    for (size_t& a : at) {
      const size_t count = a;
      a = sum;
      sum += count;
    }
    for (const uint64_t k : *keys) other[at[k >> shift & (at.size() - 1)]++] = k;
    keys->swap(other);
  }
}

}  // namespace

int64_t xz_size(std::string_view text) { return XzEncoder().size(text); }

BaselineResult xz_baseline(const std::vector<std::string>& files,
                           const std::function<void(int64_t)>& progress) {
  XzEncoder encoder;
  BaselineResult result;
  int64_t done = 0;
  for (const std::string& path : files) {
    const MappedFile file(path);
    result.bits += 8.0 * static_cast<double>(encoder.size(file.bytes()));
    result.bytes += static_cast<int64_t>(file.size());
    if (progress) progress(++done);
  }
  if (result.bytes == 0) fail("baselines", "{} files without a byte", files.size());
  return result;
}

void Trigram::Order::build(const std::vector<uint64_t>& sorted, int token_bits) {
  const uint64_t mask = (uint64_t{1} << token_bits) - 1;
  for (size_t i = 0; i < sorted.size();) {
    const uint64_t history = sorted[i] >> token_bits;
    History h{history, static_cast<int64_t>(token.size()), 0, 0};
    while (i < sorted.size() && sorted[i] >> token_bits == history) {
      size_t end = i;
      while (end < sorted.size() && sorted[end] == sorted[i]) ++end;
      token.push_back(static_cast<int32_t>(sorted[i] & mask));
      count.push_back(static_cast<int32_t>(end - i));
      h.total += static_cast<int64_t>(end - i);
      i = end;
    }
    h.end = static_cast<int64_t>(token.size());
    histories.push_back(h);
  }
  index = FlatMap<uint32_t>(histories.size());
  for (size_t n = 0; n < histories.size(); ++n) {
    index.insert(histories[n].key, static_cast<uint32_t>(n));
  }
}

const Trigram::History* Trigram::Order::find(uint64_t history) const {
  const uint32_t* found = index.find(history);
  return found == nullptr ? nullptr : &histories[*found];
}

double Trigram::Order::interpolate(const History* h, int32_t w, double lower) const {
  if (h == nullptr) return lower;
  const auto begin = token.begin() + h->begin, end = token.begin() + h->end;
  const auto at = std::lower_bound(begin, end, w);
  const double seen = at != end && *at == w
                          ? static_cast<double>(count[static_cast<size_t>(at - token.begin())])
                          : 0;
  const auto types = static_cast<double>(h->end - h->begin);
  return (seen + types * lower) / (static_cast<double>(h->total) + types);
}

Trigram::Trigram(const TokenStream& train, int32_t eos) : eos_(eos), vocab_(train.vocab_size()) {
  if (vocab_ > 1 << kTokenBits) {
    fail("baselines", "vocabulary of {}; expected at most {}", vocab_, 1 << kTokenBits);
  }
  if (train.tokens() > INT32_MAX) {
    fail("baselines", "{} tokens to count; expected at most {}", train.tokens(), INT32_MAX);
  }
  std::vector<uint64_t> keys;
  keys.reserve(static_cast<size_t>(train.tokens()));
  std::vector<int32_t> ids;
  for (int64_t d = 0; d < train.documents(); ++d) {
    const int64_t begin = train.document_begin(d);
    ids.resize(static_cast<size_t>(train.document_begin(d + 1) - begin));
    train.read(begin, ids);
    auto u = static_cast<uint64_t>(eos), v = u;
    for (const int32_t id : ids) {
      const auto w = static_cast<uint64_t>(id);
      keys.push_back(u << (2 * kTokenBits) | v << kTokenBits | w);
      u = v;
      v = w;
    }
  }
  radix_sort(&keys, 3 * kTokenBits);
  trigram_.build(keys, kTokenBits);
  for (uint64_t& k : keys) k &= (uint64_t{1} << (2 * kTokenBits)) - 1;
  radix_sort(&keys, 2 * kTokenBits);
  bigram_.build(keys, kTokenBits);
  for (uint64_t& k : keys) k &= (uint64_t{1} << kTokenBits) - 1;
  radix_sort(&keys, kTokenBits);
  unigram_.build(keys, kTokenBits);
}

double Trigram::probability(int32_t u, int32_t v, int32_t w) const {
  const uint64_t left = static_cast<uint64_t>(u), right = static_cast<uint64_t>(v);
  double p = 1.0 / static_cast<double>(vocab_);
  p = unigram_.interpolate(unigram_.find(0), w, p);
  p = bigram_.interpolate(bigram_.find(right), w, p);
  return trigram_.interpolate(trigram_.find(left << kTokenBits | right), w, p);
}

BaselineResult Trigram::evaluate(const TokenStream& held_out) const {
  if (held_out.vocab_size() != vocab_) {
    fail("baselines", "held-out tokens of a vocabulary of {}; expected {}", held_out.vocab_size(),
         vocab_);
  }
  BaselineResult result;
  result.bytes = held_out.bytes();
  std::vector<int32_t> ids;
  for (int64_t d = 0; d < held_out.documents(); ++d) {
    const int64_t begin = held_out.document_begin(d);
    ids.resize(static_cast<size_t>(held_out.document_begin(d + 1) - begin));
    held_out.read(begin, ids);
    int32_t u = eos_, v = eos_;
    for (const int32_t w : ids) {
      result.bits -= std::log2(probability(u, v, w));
      u = v;
      v = w;
    }
  }
  return result;
}

}  // namespace hocket::data
