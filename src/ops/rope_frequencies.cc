// SPDX-License-Identifier: Apache-2.0
#include "ops/rope_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace hocket::ops {
namespace {

double f_or(const graph::Attrs& attrs, std::string_view key, double fallback) {
  return attrs.has(key) ? attrs.f(key) : fallback;
}

/// Returns an attribute that must be a positive number.
double positive(const graph::Attrs& attrs, std::string_view key) {
  const double value = attrs.f(key);
  if (!(value > 0 && std::isfinite(value))) {
    fail("rope", "{} is {}; expected a positive number", key, value);
  }
  return value;
}

void unscaled(double theta, std::span<double> frequencies) {
  const double dims = 2 * static_cast<double>(frequencies.size());
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(theta, -2.0 * static_cast<double>(i) / dims);
  }
}

/// Interpolates long wavelengths (AI@Meta, Llama 3.1).
void scale_llama3(const graph::Attrs& attrs, std::span<double> frequencies) {
  const double factor = attrs.f("factor");
  const double low = attrs.f("low_freq_factor");
  const double high = attrs.f("high_freq_factor");
  const double old = attrs.f("original_max_position");
  for (double& f : frequencies) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength > old / low) {
      f /= factor;
    } else if (wavelength >= old / high) {
      const double smooth = (old / wavelength - low) / (high - low);
      f = (1 - smooth) * f / factor + smooth * f;
    }
  }
}

/// Returns the base for sequences longer than those of the training ("NTK-aware" scaling).
double dynamic_theta(const graph::Attrs& attrs, double theta, size_t pairs) {
  if (pairs < 2) fail("rope", "scaling dynamic of 2 dims; expected at least 4");
  const double factor = positive(attrs, "factor"),
               longest = positive(attrs, "original_max_position");
  const double length = std::max(static_cast<double>(attrs.i("seq")), longest);
  const double dims = 2 * static_cast<double>(pairs);
  return theta * std::pow(factor * length / longest - (factor - 1), dims / (dims - 2));
}

/// YaRN's factor of cos and sin for a scale of the context.
double yarn_magnitude(double scale, double multiplier) {
  return scale <= 1 ? 1 : 0.1 * multiplier * std::log(scale) + 1;
}

/// YaRN (Peng et al., arXiv 2309.00071): interpolates slow pairs by `factor`, leaves fast ones,
/// with a ramp between them.
double scale_yarn(const graph::Attrs& attrs, double theta, std::span<double> frequencies) {
  const double factor = positive(attrs, "factor");
  const double old = positive(attrs, "original_max_position");
  const double dims = 2 * static_cast<double>(frequencies.size());
  // The pair that makes attrs[key] turns over the original context.
  const auto pair_of = [&](std::string_view key, double otherwise) {
    const double turns = attrs.has(key) ? positive(attrs, key) : otherwise;
    return dims * std::log(old / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = pair_of("beta_fast", 32), high = pair_of("beta_slow", 1);
  if (attrs.i_or("truncate", 1) != 0) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  if (low == high) {
    high += 0.001;
  }
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / factor * ramp + frequencies[i] * (1 - ramp);
  }
  if (attrs.has("attention_factor")) return positive(attrs, "attention_factor");
  const double some = f_or(attrs, "mscale", 0), all = f_or(attrs, "mscale_all_dim", 0);
  if (some != 0 && all != 0) return yarn_magnitude(factor, some) / yarn_magnitude(factor, all);
  return yarn_magnitude(factor, 1);
}

/// LongRoPE (Ding et al., arXiv 2402.13753): divides every pair's frequency by a number of its own.
double scale_longrope(const graph::Attrs& attrs, std::span<double> frequencies) {
  const std::vector<std::string> factors = split(attrs.s("factors"), ' ');
  if (factors.size() != frequencies.size()) {
    fail("rope", "got {} factors of longrope; expected {}, one per pair of dims", factors.size(),
         frequencies.size());
  }
  for (size_t i = 0; i < factors.size(); ++i) {
    double factor = 0;
    if (!parse_double(factors[i], &factor) || !(factor > 0)) {
      fail("rope", "factor {} of longrope is {}; expected a positive number", i, quote(factors[i]));
    }
    frequencies[i] /= factor;
  }
  if (attrs.has("attention_factor")) return positive(attrs, "attention_factor");
  const double factor = positive(attrs, "factor");
  if (factor <= 1) return 1;
  return std::sqrt(1 + std::log(factor) / std::log(positive(attrs, "original_max_position")));
}

}  // namespace

double rope_frequencies(const graph::Attrs& attrs, std::span<double> frequencies) {
  const double theta = attrs.f("theta");
  const std::string kind = attrs.has("scaling") ? attrs.s("scaling") : "default";
  unscaled(kind == "dynamic" ? dynamic_theta(attrs, theta, frequencies.size()) : theta,
           frequencies);
  if (kind == "yarn") return scale_yarn(attrs, theta, frequencies);
  if (kind == "longrope") return scale_longrope(attrs, frequencies);
  if (kind == "llama3") {
    scale_llama3(attrs, frequencies);
  } else if (kind == "linear") {
    for (double& f : frequencies) {
      f /= attrs.f("factor");
    }
  } else if (kind != "default" && kind != "dynamic") {
    fail("rope", "scaling is {}; expected default, linear, llama3, dynamic, yarn or longrope",
         quote(kind));
  }
  return 1;
}

}  // namespace hocket::ops
