// SPDX-License-Identifier: Apache-2.0
// Sources mixed by weight: each draw names a source, so that after any number of draws every source
// has had its share but for about one draw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hocket::data {

/// A draw is a pure function of the weights and its index.
class Blend {
 public:
  /// Takes weights, which are relative to each other; a source of weight 0 is never drawn. Throws
  /// Error for no weight above 0, or one that is negative or not finite.
  explicit Blend(const std::vector<double>& weights);

  struct Draw {
    int64_t source = 0;
    int64_t index = 0;  ///< draws of this source before
  };
  Draw operator()(int64_t index) const;
  /// Returns how many of the first `draws` draws are of each source.
  std::vector<int64_t> counts(int64_t draws) const;

 private:
  struct Source {
    int64_t number = 0;
    int64_t weight = 0, rest = 0;  ///< its weight, and the sum with all that come after it
    int64_t of(int64_t draws) const;
  };
  std::vector<Source> sources_;  ///< the heaviest first
  size_t size_ = 0;
};

}  // namespace hocket::data
