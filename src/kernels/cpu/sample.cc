// SPDX-License-Identifier: Apache-2.0
// sample: a row of logits is changed in the order bias, penalties, mask, temperature, top_k, top_p,
// min_p; a uniform number of seed, stream and position then picks a token, in order of their ids.
// Where nothing else changes or leaves out logits, log-probabilities at a temperature have the bits
// of token_logprobs: the same functions make both (vocabulary.h).
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "graph/layout.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/vocabulary.h"
#include "ops/sample.h"

namespace hocket::kernels::HOCKET_CPU {
namespace {

using ops::Draw;
using ops::Setting;

template <typename T>
class SampledRow {
 public:
  SampledRow(const KernelArgs& args, int64_t row, Scratch scratch)
      : args_(args),
        row_(row),
        width_(args.in[0].dim(1)),
        vocab_(args.attrs->i("vocab")),
        logits_(in<T>(args, 0) + row * width_),
        z_(scratch.take<T>(width_)),
        kept_(scratch.take<int32_t>(width_)) {}

  void run() {
    for (int64_t i = 0; i < vocab_; ++i) {
      if (!std::isfinite(logits_[i])) return report_none(i);
    }
    double lse = in_parts(logits_);
    report_alternatives(setting(Setting::candidates) == 0 ? lse : kNone);
    T factor = 1;
    if (setting(Setting::tempered) != 0 && setting(Setting::temperature) > 0) {
      factor = static_cast<T>(1 / setting(Setting::temperature));
      std::copy_n(logits_, width_, z_);
      temper_row(z_, width_, factor);
      lse = in_parts(z_);
    }
    const int64_t given = draw_of(Draw::given);
    double sampled = 0;
    int32_t id;
    if (given >= 0) {
      if (given >= width_) {
        fail_run("sample", "token {}; expected less than {}", given, width_);
      }
      id = static_cast<int32_t>(given);
      sampled = static_cast<double>(rank_of(id));
    } else {
      std::copy_n(logits_, vocab_, z_);
      change();
      mask();
      id = pick(&sampled);
    }
    out<int32_t>(args_, 0)[row_] = id;
    out<double>(args_, 1)[2 * row_] = tempered(logits_[id], factor) - lse;
    out<double>(args_, 1)[2 * row_ + 1] = sampled;
  }

 private:
  double setting(Setting which) const {
    return in<double>(args_, 1)[row_ * ops::kNumSettings + static_cast<int64_t>(which)];
  }
  int64_t draw_of(Draw which) const {
    return in<int64_t>(args_, 2)[row_ * ops::kNumDraws + static_cast<int64_t>(which)];
  }

  /// Returns log sum e^z in the order of training's head: parts of the vocabulary, one per rank,
  /// then their sums in the order of ranks.
  double in_parts(const T* z) const {
    const int64_t parts = args_.attrs->i_or("parts", 1);
    if (parts == 1) return log_sum_exp(z, width_);
    const T top = greatest(z, width_);
    double sum = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const graph::Run run = graph::share(width_, parts, part);
      sum += sum_of_exponentials(z + run.begin, run.length, top);
    }
    return static_cast<double>(top) + std::log(sum);
  }
  /// Returns a logit over the temperature as rows in memory have it.
  static double tempered(T z, T factor) {
    volatile T rounded = z * factor;  // else the product may be fused with later operations
    return static_cast<double>(rounded);
  }

  /// Reports that nothing can be drawn: the logit of a token is no number. Other rows go on.
  void report_none(int64_t token) {
    report_alternatives(kNone);
    out<int32_t>(args_, 0)[row_] = -1;
    out<double>(args_, 1)[2 * row_] = static_cast<double>(logits_[token]);
    out<double>(args_, 1)[2 * row_ + 1] = static_cast<double>(token);
  }

  /// Returns the place of a token among the most likely ones, from 1.
  int64_t rank_of(int32_t id) const {
    int64_t rank = 1;
    for (int64_t i = 0; i < vocab_; ++i) {
      rank += logits_[i] > logits_[id] || (logits_[i] == logits_[id] && i < id) ? 1 : 0;
    }
    return rank;
  }

  /// The most likely tokens under the model; of equal ones the lower ids. `lse` kNone: no tokens.
  void report_alternatives(double lse) {
    const int64_t top = args_.attrs->i("top");
    int32_t* ids = out<int32_t>(args_, 2) + row_ * top;
    double* logprobs = out<double>(args_, 3) + row_ * top;
    const int64_t n = std::min({static_cast<int64_t>(setting(Setting::alternatives)), top, vocab_});
    std::fill_n(ids, top, -1);
    std::fill_n(logprobs, top, 0.0);
    if (n <= 0 || lse == kNone) return;
    const auto before = [this](int32_t a, int32_t b) {
      return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
    };
    for (int64_t i = 0; i < vocab_; ++i) {
      kept_[i] = static_cast<int32_t>(i);
    }
    std::partial_sort(kept_, kept_ + n, kept_ + vocab_, before);
    for (int64_t i = 0; i < n; ++i) {
      ids[i] = kept_[i];
      logprobs[i] = static_cast<double>(logits_[kept_[i]]) - lse;
    }
  }

  void change() {
    const int32_t* range = in<int32_t>(args_, 4) + 2 * row_;
    const int64_t entries = args_.in[5].dim(0);
    if (range[0] < 0 || range[1] < range[0] || range[1] > entries) {
      fail_run("sample", "changes {} to {} of row {}; expected a range of the {} there are",
               range[0], range[1], row_, entries);
    }
    for (int64_t i = range[0]; i < range[1]; ++i) {
      const int32_t token = in<int32_t>(args_, 5)[i];
      if (token < 0 || token >= width_) {
        fail_run("sample", "a change of token {}; expected 0 to {}", token, width_ - 1);
      }
      if (token < vocab_) {
        z_[token] = changed(i, z_[token]);
      }
    }
  }
  /// Returns a logit after change i.
  T changed(int64_t i, T logit) const {
    const int32_t count = in<int32_t>(args_, 6)[i];
    const double repetition = setting(Setting::repetition_penalty);
    double z = static_cast<double>(logit) + in<double>(args_, 7)[i];
    if (count >= 0 && repetition > 0 && repetition != 1) {
      z = z > 0 ? z / repetition : z * repetition;
    }
    if (count > 0) {
      z -= setting(Setting::presence_penalty) + count * setting(Setting::frequency_penalty);
    }
    return static_cast<T>(z);
  }
  /// Returns the logit of a token after all changes.
  T changed_logit(int32_t token) const {
    const int32_t* range = in<int32_t>(args_, 4) + 2 * row_;
    T z = logits_[token];
    for (int64_t i = range[0]; i < range[1]; ++i) {
      if (in<int32_t>(args_, 5)[i] == token) {
        z = changed(i, z);
      }
    }
    return z;
  }

  void mask() {
    if (setting(Setting::masked) == 0) return;
    const int64_t words = args_.in[3].dim(1);
    if (words * 32 < vocab_) {
      fail_run("sample", "a mask of {} words; expected one bit per token, of {}", words, vocab_);
    }
    const int32_t* mask = in<int32_t>(args_, 3) + row_ * words;
    bool any = false;
    for (int64_t i = 0; i < vocab_; ++i) {
      const bool allowed = (static_cast<uint32_t>(mask[i / 32]) >> (i % 32) & 1) != 0;
      any |= allowed;
      if (!allowed) {
        z_[i] = -std::numeric_limits<T>::infinity();
      }
    }
    if (!any) fail_run("sample", "the mask of row {} allows no token", row_);
  }

  /// Draws from the rest; *logprob becomes that of the token in the distribution drawn from.
  int32_t pick(double* logprob) {
    const int64_t best = std::max_element(z_, z_ + vocab_) - z_;
    const double temperature = setting(Setting::temperature);
    const T factor = temperature > 0 ? static_cast<T>(1 / temperature) : T(0);
    if (factor <= 0 || !std::isfinite(tempered(z_[best], factor))) {
      *logprob = 0;
      return static_cast<int32_t>(best);
    }
    temper_row(z_, vocab_, factor);
    // Probabilities relative to the most likely token's.
    const T top = z_[best];
    const double sum = sum_of_exponentials(
        z_, vocab_, top, [this](int64_t i, int64_t n, Vec<T> p) { store_some(z_ + i, p, n); });
    const int64_t kept = truncate(sum);
    double total = sum;
    if (kept >= 0) {
      total = 0;
      for (int64_t i = 0; i < kept; ++i) {
        total += static_cast<double>(z_[kept_[i]]);
      }
    }
    const auto stream = hash_name("sample") + static_cast<uint64_t>(draw_of(Draw::stream));
    double u = uniform(static_cast<uint64_t>(draw_of(Draw::seed)), stream,
                       static_cast<uint64_t>(draw_of(Draw::position))) *
               total;
    const int64_t n = kept >= 0 ? kept : vocab_;
    int32_t id = static_cast<int32_t>(best);
    for (int64_t i = 0; i < n; ++i) {
      const int32_t candidate = kept >= 0 ? kept_[i] : static_cast<int32_t>(i);
      if (z_[candidate] <= 0) continue;
      id = candidate;
      if ((u -= static_cast<double>(z_[candidate])) < 0) break;
    }
    const double drawn_lse = static_cast<double>(top) + std::log(total);
    if (kept >= 0 && setting(Setting::candidates) != 0) {
      report_candidates(kept, factor, drawn_lse);
    }
    *logprob = tempered(changed_logit(id), factor) - drawn_lse;
    return id;
  }

  /// Reports the tokens drawn from, kept_[0, kept), as alternatives, if there is room for all.
  void report_candidates(int64_t kept, T factor, double lse) {
    const int64_t top = args_.attrs->i("top");
    if (kept > std::min(static_cast<int64_t>(setting(Setting::alternatives)), top)) return;
    for (int64_t i = 0; i < kept; ++i) {
      out<int32_t>(args_, 2)[row_ * top + i] = kept_[i];
      out<double>(args_, 3)[row_ * top + i] = tempered(changed_logit(kept_[i]), factor) - lse;
    }
  }

  /// Keeps the tokens that top_k, top_p and min_p leave, in order of their ids; returns their
  /// number, or -1 for all.
  int64_t truncate(double sum) {
    const auto top_k = static_cast<int64_t>(setting(Setting::top_k));
    const double top_p = setting(Setting::top_p), min_p = setting(Setting::min_p);
    const bool limits_k = top_k > 0 && top_k < vocab_, limits_p = top_p < 1;
    if (!limits_k && !limits_p && min_p <= 0) return -1;
    // Tokens below `floor` are less than 1 - top_p together, so the others suffice; the most
    // likely token, of probability 1 here, is never below.
    // After top_k the share of top_p is one of all that top_k left, so min_p waits for it.
    const bool min_p_waits = limits_k && limits_p;
    double floor = min_p_waits ? 0.0 : std::max(0.0, min_p);
    if (limits_p && !limits_k) {
      floor = std::max(floor, std::min(1.0, (1 - top_p) * sum / static_cast<double>(vocab_)));
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < vocab_; ++i) {
      if (static_cast<double>(z_[i]) >= floor && z_[i] > 0) {
        kept_[kept++] = static_cast<int32_t>(i);
      }
    }
    const auto before = [this](int32_t a, int32_t b) {
      return z_[a] != z_[b] ? z_[a] > z_[b] : a < b;
    };
    if (limits_k && top_k < kept) {
      std::nth_element(kept_, kept_ + top_k, kept_ + kept, before);
      kept = top_k;
    }
    if (limits_p) {
      std::sort(kept_, kept_ + kept, before);
      double all = sum, share = 0;
      if (limits_k) {
        all = 0;
        for (int64_t i = 0; i < kept; ++i) {
          all += static_cast<double>(z_[kept_[i]]);
        }
      }
      int64_t n = 0;
      while (n < kept && (n == 0 || share < top_p * all)) {
        share += static_cast<double>(z_[kept_[n++]]);
      }
      while (min_p_waits && n > 1 && static_cast<double>(z_[kept_[n - 1]]) < min_p) {
        --n;
      }
      kept = n;
    }
    // A comparison of this file: the function of `<` is one for all levels of instructions.
    std::sort(kept_, kept_ + kept, [](const auto& a, const auto& b) { return a < b; });
    return kept;
  }

  static constexpr double kNone = std::numeric_limits<double>::infinity();

  const KernelArgs& args_;
  const int64_t row_, width_, vocab_;
  const T* logits_;
  T* z_;
  int32_t* kept_;
};

}  // namespace

template <typename T>
void sample(const KernelArgs& args) {
  const int64_t rows = args.in[0].dim(0);
  Scratch scratch(args);
  const int64_t each = ops::sample_scratch(args.in[0].dim(1), sizeof(T));
  const int64_t threads =
      std::max<int64_t>(1, std::min({int64_t{team_size()}, scratch.left() / each, rows}));
  std::byte* base = scratch.take<std::byte>(threads * each);
  auto row = [&](int64_t r, int64_t thread) {
    SampledRow<T>(args, r, Scratch(base + thread * each, each)).run();
  };
  parallel(rows, threads, row);
}

HOCKET_KERNEL(sample)

}  // namespace hocket::kernels::HOCKET_CPU
