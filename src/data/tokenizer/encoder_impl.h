// SPDX-License-Identifier: Apache-2.0
// Inside of the encoder: encoder.cc cuts a text into words, word_model.cc gives a word its ids.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer_impl.h"
#include "data/tokenizer/word_cache.h"

namespace hocket::data {

struct Encoder::Impl {
  explicit Impl(const Tokenizer::Impl& tokenizer)
      : t(tokenizer),
        drops(tokenizer.spec.model == TokenizerSpec::Model::bpe && tokenizer.spec.unk < 0 &&
              !tokenizer.fallback) {
    cursors.reserve(t.regexes.size());
    for (const Regex& regex : t.regexes) {
      cursors.emplace_back(regex);
    }
    rewritten.resize(t.regexes.size());
    cuts.resize(t.regexes.size());
  }

  void split_added(const Piece& piece, bool normalized);
  void pretokenize(size_t step, const Piece& piece);
  void split(size_t step, const Piece& piece);
  void metaspace(size_t step, const Piece& piece);

  bool is_literal(const Piece& piece, size_t begin) const;
  void put(int32_t id, const Piece& piece);
  void word(const Piece& piece);
  void cut_word(const Piece& piece);
  void model_word(const Piece& piece);
  void cached_word(std::string_view text);
  void run_model(std::string_view text);
  void put_ranges(const Piece& piece);
  size_t kept_size(std::string_view text, size_t* at, size_t kept) const;
  bool usable(int32_t id);
  int unit_length(std::string_view text, size_t at) const;
  void bpe(std::string_view text);
  void start_symbols(std::string_view text);
  void unigram(std::string_view text);
  void unknown(std::string_view text);
  void merge_linear();
  void merge_heap();

  const Tokenizer::Impl& t;
  const bool drops;                    // what has no token is left out
  bool has_dropped = false;            // and that was said
  std::vector<Regex::Cursor> cursors;  // of each pre-tokenizer, like the two that follow
  std::vector<Rewritten> rewritten;
  struct Cut {
    size_t begin, end;
    bool is_match;
  };
  std::vector<std::vector<Cut>> cuts;
  std::array<Rewritten, 2> normalized;
  std::vector<ByteRange> places;
  WordCache cache;

  // State of the call at hand.
  std::vector<int32_t>* ids = nullptr;
  std::vector<ByteRange>* ranges = nullptr;
  bool split_special = false;
  std::span<const size_t> literal;
  int64_t special_met = 0;

  // State of the word at hand.
  std::vector<int32_t> symbols;
  std::vector<uint32_t> sizes;  // bytes of each symbol; only Unigram fills it
  std::vector<uint32_t> ranks;  // of each symbol with the next
  bool met_special = false;     // a special token was, or would have been, part of the result
  struct Node {
    double score = 0;
    size_t begin = std::string::npos;
    int32_t id = -1;
  };
  std::vector<Node> nodes;  // of Unigram: the best way to each place
};

}  // namespace hocket::data
