// SPDX-License-Identifier: Apache-2.0
// Baselines in bits per byte of the held-out files: `xz -9e` on each file alone and, harder, on all
// of them as one text; and a trigram model over the same tokens and training split.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/flat_map.h"
#include "data/shards.h"
#include "data/text_part.h"

namespace hocket::data {

struct BaselineResult {
  double bits = 0;
  int64_t bytes = 0;
  double bits_per_byte() const { return bits / bytes; }
};

/// Size in bytes of the .xz file that `xz -9e` makes of `text` (LZMA2, CRC64). Throws Error if
/// memory does not suffice.
int64_t xz_size(std::string_view text);

/// Compresses each file alone. `progress` gets the number done. Throws Error without files or
/// bytes.
BaselineResult xz_each(const std::vector<TextPart>& files,
                       const std::function<void(int64_t)>& progress = nullptr);

/// Compresses all files as one text, so that each may refer to earlier ones, up to 64 MiB back.
/// Otherwise like xz_each.
BaselineResult xz_one_piece(const std::vector<TextPart>& files,
                            const std::function<void(int64_t)>& progress = nullptr);

/// Trigram model with Witten-Bell interpolation (Witten and Bell, "The zero-frequency problem",
/// IEEE Trans. Information Theory 37(4), 1991; method C). With c(h) tokens seen after history h,
/// T(h) of them different:
///   p(w | u v) = (c(u v w) + T(u v) p(w | v)) / (c(u v) + T(u v))
///   p(w | v)   = (c(v w) + T(v) p(w)) / (c(v) + T(v))
///   p(w)       = (c(w) + T / V) / (N + T)
/// A history never seen passes on the shorter one's p. Each document begins after two ends of text
/// and ends with one that is predicted, as for the models.
class Trigram {
 public:
  /// Counts of all documents of `train`. About 40 bytes a token while it is built. Throws Error for
  /// a vocabulary beyond 2^21.
  Trigram(const TokenStream& train, int32_t eos);

  double probability(int32_t u, int32_t v, int32_t w) const;
  /// Bits of all tokens of `held_out`. Throws Error for another vocabulary.
  BaselineResult evaluate(const TokenStream& held_out) const;

 private:
  // The different tokens seen after one history, sorted, with their counts.
  struct History {
    uint64_t key;  // the tokens of the history
    int64_t begin, end;
    int64_t total;
  };
  struct Order {
    std::vector<int32_t> token;
    std::vector<int32_t> count;
    std::vector<History> histories;
    FlatMap<uint32_t> index;  // of each history, by its key

    void build(const std::vector<uint64_t>& sorted, int token_bits);
    const History* find(uint64_t history) const;
    double interpolate(const History* history, int32_t w, double lower) const;
  };

  int32_t eos_, vocab_;
  Order unigram_, bigram_, trigram_;
};

class Dataset;

/// Selection of baselines. The trigram reads 10 MB a second and more, xz about 1.5 (twice).
struct BaselineChoice {
  bool xz = true, trigram = true;
};

/// Bits per byte of the held-out files; absent: not asked for.
struct Baselines {
  std::optional<double> xz_each, xz_one_piece, trigram;
};

/// Computes baselines of a prepared folder. `progress` gets the current step. Throws Error without
/// a validation split, or if files are gone or changed since preparation.
Baselines run_baselines(const Dataset& dataset, BaselineChoice choice = {},
                        const std::function<void(const std::string&)>& progress = nullptr);

/// Returns baselines as run_baselines() does, with earlier results from baselines.json in the
/// folder; new ones are stored there (a failure is a warning).
Baselines kept_baselines(const Dataset& dataset, BaselineChoice choice,
                         const std::function<void(const std::string&)>& progress = nullptr);

}  // namespace hocket::data
