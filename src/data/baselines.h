// SPDX-License-Identifier: Apache-2.0
// What a model has to beat, in bits per byte of the held-out files: `xz -9e` on each of them alone
// and, harder, on all of them in one piece; and a trigram model over the same tokens, trained on
// the same training split.
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
  double bits_per_byte() const { return bits / static_cast<double>(bytes); }
};

/// Size in bytes of the .xz file that `xz -9e` makes of `text` (LZMA2, CRC64). Error: out of
/// memory.
int64_t xz_size(std::string_view text);

/// All files, each compressed alone. `progress` gets the number done. Error: no files or no bytes.
BaselineResult xz_each(const std::vector<TextPart>& files,
                       const std::function<void(int64_t)>& progress = nullptr);

/// All files one after the other as one text, so that each is described by what came before it, as
/// far back as 64 MiB. Otherwise as xz_each.
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
  /// Counts of all documents of `train`. About 40 bytes a token while it is built. Error: a
  /// vocabulary beyond 2^21.
  Trigram(const TokenStream& train, int32_t eos);

  double probability(int32_t u, int32_t v, int32_t w) const;
  /// Bits of all tokens of `held_out`. Error: other vocabulary.
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

/// Which baselines are wanted. The trigram reads 10 MB a second and more, xz about 1.5 (twice).
struct BaselineChoice {
  bool xz = true, trigram = true;
};

/// Bits per byte of the held-out files; absent: not asked for.
struct Baselines {
  std::optional<double> xz_each, xz_one_piece, trigram;
};

/// Of a prepared folder. `progress` gets what is being done. Error: no validation split; files that
/// are gone or changed since they were prepared.
Baselines run_baselines(const Dataset& dataset, BaselineChoice choice = {},
                        const std::function<void(const std::string&)>& progress = nullptr);

/// As run_baselines; what was computed before is taken from baselines.json in the folder, and what
/// is new is kept there (a warning if it can't be).
Baselines kept_baselines(const Dataset& dataset, BaselineChoice choice,
                         const std::function<void(const std::string&)>& progress = nullptr);

}  // namespace hocket::data
