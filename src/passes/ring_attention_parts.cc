// SPDX-License-Identifier: Apache-2.0
#include "passes/ring_attention_parts.h"

namespace hocket::passes {

Halves::Halves(const Blocks& ring) : of_(ring.size()) {
  int64_t begin = 0;
  for (size_t place = 0; place < ring.size(); ++place) {
    of_[place][0] = {begin, graph::share(ring[place].length, 2, 0).length};
    begin += of_[place][0].length;
  }
  for (size_t place = ring.size(); place-- > 0;) {
    of_[place][1] = {begin, graph::share(ring[place].length, 2, 1).length};
    begin += of_[place][1].length;
  }
  for (const auto& [early, late] : of_) {
    const int64_t length = of_[0][0].length;
    uneven_ = uneven_ || early.length != length || late.length != length;
  }
}

graph::Run Halves::side(int64_t part) const {
  const int64_t middle = of_.back()[1].begin;
  const graph::Run& last = of_.front()[1];
  return part == 0 ? graph::Run{0, middle} : graph::Run{middle, last.begin + last.length - middle};
}

}  // namespace hocket::passes
