// SPDX-License-Identifier: Apache-2.0
#include "data/examples/blend.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace hocket::data {

namespace {

constexpr double kBlendUnits = 0x1p40;  // weights become integers that add up to about this

}  // namespace

Blend::Blend(const std::vector<double>& weights) : size_(weights.size()) {
  double sum = 0;
  for (const double weight : weights) {
    if (!(weight >= 0 && std::isfinite(weight))) {
      fail("data", "a source of weight {}; expected 0 or more", weight);
    }
    sum += weight;
  }
  if (!(sum > 0 && std::isfinite(sum))) {
    fail("data", "weights of sources that add up to {}; expected more than 0", sum);
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0) {
      const auto units = static_cast<int64_t>(std::llround(weights[i] / sum * kBlendUnits));
      sources_.push_back({static_cast<int64_t>(i), std::max<int64_t>(units, 1), 0});
    }
  }
  std::stable_sort(sources_.begin(), sources_.end(),
                   [](const Source& a, const Source& b) { return a.weight > b.weight; });
  int64_t rest = 0;
  for (auto source = sources_.rbegin(); source != sources_.rend(); ++source) {
    source->rest = rest += source->weight;
  }
}

// Returns its share of `draws` draws from it and those after it, rounded to the nearest.
int64_t Blend::Source::of(int64_t draws) const {
  __extension__ using Wide = __int128;
  return static_cast<int64_t>((static_cast<Wide>(draws) * weight + rest / 2) / rest);
}

Blend::Draw Blend::operator()(int64_t index) const {
  HOCKET_CHECK(index >= 0, "draw {}", index);
  for (const Source& source : sources_) {
    const int64_t before = source.of(index);
    if (source.of(index + 1) > before) return {source.number, before};
    index -= before;
  }
  HOCKET_CHECK(false, "draw {} of no source", index);
  return {};
}

std::vector<int64_t> Blend::counts(int64_t draws) const {
  std::vector<int64_t> out(size_);
  for (const Source& source : sources_) {
    out[source.number] = source.of(draws);
    draws -= out[source.number];
  }
  return out;
}

}  // namespace hocket::data
