// SPDX-License-Identifier: Apache-2.0
// Random tokens as frequent as words of a language are, where no text is at hand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.h"

namespace hocket::data {

/// Token i of a vocabulary is drawn with a probability proportional to 1 / (i + 1) (Zipf's law).
class ZipfTokens {
 public:
  explicit ZipfTokens(int64_t vocabulary) {
    double total = 0;
    for (int64_t i = 0; i < vocabulary; ++i) {
      total += 1.0 / (i + 1);
      sums_.push_back(total);
    }
  }
  int32_t draw(Rng& rng) const {
    const auto found = std::upper_bound(sums_.begin(), sums_.end(), rng.uniform() * sums_.back());
    return std::min(std::ssize(sums_) - 1, found - sums_.begin());
  }

 private:
  std::vector<double> sums_;  // of the weights up to each token
};

}  // namespace hocket::data
