// SPDX-License-Identifier: Apache-2.0
// Implements: read_ropes (config_reader.h), with the defaults of transformers'
// modeling_rope_utils.py.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "models/config_reader.h"

namespace hocket::models {

namespace {

constexpr const char* kOriginal = "original_max_position_embeddings";
constexpr const char* kPartial = "partial_rotary_factor";
/// Families that read it have a rope of their own in layers with a window.
constexpr const char* kLocalTheta = "rope_local_base_freq";

/// Attention factor of YaRN (arXiv 2309.00071, eq. 22).
double yarn_attention(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

std::vector<double> read_factors(const JsonView& in, const char* key, int64_t pairs) {
  const JsonView list = in.at(key);
  std::vector<double> factors;
  for (size_t i = 0; i < list.size(); ++i) {
    factors.push_back(list.at(i).as_double());
    if (!(factors.back() > 0)) {
      list.at(i).fail(fmt::format("is {}; expected a number above 0", factors.back()));
    }
  }
  if (std::ssize(factors) != pairs) {
    list.fail(fmt::format("has {} numbers; expected {}, one per pair of dims that turn",
                          factors.size(), pairs));
  }
  return factors;
}

/// Reads ropes of one config.json.
class RopeReader {
 public:
  RopeReader(const JsonView& top, const Family& family, const ModelConfig& config)
      : top_(top), family_(family), config_(config) {}

  /// `in`: the object of scaling, or null; `theta_key`: of the theta beside it.
  Rope read(const JsonView* in, const char* theta_key, double theta) const {
    Rope rope;
    rope.theta = read_number(top_, theta_key, 1, 1e18, theta);
    if (in != nullptr && in->has("rope_theta")) {
      const double inside = read_number(*in, "rope_theta", 1, 1e18);
      if (top_.has(theta_key) && inside != rope.theta) {
        in->at("rope_theta")
            .fail(fmt::format("is {} but the one outside is {}; expected one value", inside,
                              rope.theta));
      }
      rope.theta = inside;
    }
    rope.dims = dims(in);
    if (in != nullptr) {
      read_scaling(*in, &rope);
    }
    return rope;
  }

 private:
  /// Dims of a head that turn; 0: all.
  int64_t dims(const JsonView* in) const {
    const char* key = family_.key(kPartial);
    if (!top_.has(key)) {
      key = kPartial;
    }
    double share = read_number(top_, key, 0, 1, family_.defaults.rotary);
    if (in != nullptr && in->has(kPartial)) {
      const double inside = read_number(*in, kPartial, 0, 1);
      if (top_.has(key) && inside != share) {
        in->at(kPartial).fail(
            fmt::format("is {} but the one outside is {}; expected one value", inside, share));
      }
      share = inside;
      if (share != 1 && !family_.reads(kPartial)) {
        in->at(kPartial).fail("is not supported; expected 1: all of a head rotates");
      }
    }
    if (share == 1) return 0;
    const auto turn = static_cast<int64_t>(share * static_cast<double>(config_.head_dim));
    if (turn < 2 || turn % 2 != 0) {
      fail(top_.where(), "{} is {}: {} of the head's {} dims turn; expected an even number of them",
           key, share, turn, config_.head_dim);
    }
    return turn == config_.head_dim ? 0 : turn;
  }

  void read_scaling(const JsonView& in, Rope* rope) const {
    const char* key = in.has("rope_type") ? "rope_type" : "type";
    rope->scaling = in.get_string(key, "default");
    if (key == std::string_view("type") && rope->scaling != "default" &&
        family_.reads(kLocalTheta)) {
      in.at(key).fail(fmt::format(
          "is {}, which transformers 4 reads and transformers 5 ignores in a model with two ropes; "
          "expected rope_type in its place",
          quote(rope->scaling)));
    }
    if (family_.reads("long_factor") && (rope->scaling == "su" || rope->scaling == "yarn")) {
      rope->scaling = "longrope";  // older names, of Phi-3
    }
    static const std::vector<std::string> kKnown = {"default", "linear",   "llama3",
                                                    "yarn",    "longrope", "dynamic"};
    if (std::find(kKnown.begin(), kKnown.end(), rope->scaling) == kKnown.end()) {
      in.at(key).fail(fmt::format("is {}, which is not supported; expected {}",
                                  quote(rope->scaling), join(kKnown, " or ")));
    }
    if (rope->scaling == "default") return;
    if (rope->scaling == "linear") {
      rope->factor = read_number(in, "factor", 1, 1e9);
      return;
    }
    rope->original_max_position = original_max_position(in);
    const double stretch = static_cast<double>(config_.max_position) / rope->original_max_position;
    const bool may_lack = rope->scaling == "yarn" || rope->scaling == "longrope";
    rope->factor = may_lack ? read_number(in, "factor", 1e-9, 1e9, stretch)
                            : read_number(in, "factor", 1, 1e9);
    if (rope->scaling == "llama3") {
      read_llama3(in, rope);
    } else if (rope->scaling == "yarn") {
      read_yarn(in, rope);
    } else if (rope->scaling == "longrope") {
      read_longrope(in, rope);
    } else {
      rope->original_max_position = static_cast<double>(config_.max_position);
    }
  }

  /// Reads the first that is there, in the order of transformers 5. These are a top-level key, or
  /// what the family has in its place, the object of scaling, and the longest context.
  double original_max_position(const JsonView& in) const {
    // Tokens, far beyond any context; a double has every integer up to it.
    constexpr double kMaxPositions = 1e12;
    const auto absent = static_cast<double>(family_.defaults.original_max_position);
    if (top_.has(kOriginal) || absent == 0) {
      return read_number(
          top_, kOriginal, 1, kMaxPositions,
          read_number(in, kOriginal, 1, kMaxPositions, static_cast<double>(config_.max_position)));
    }
    if (const double inside = read_number(in, kOriginal, 1, kMaxPositions, absent);
        inside != absent) {
      in.at(kOriginal).fail(
          fmt::format("is {}, which transformers does not read of a {}: without the key outside it "
                      "takes {}; expected the key outside",
                      inside, family_.name, absent));
    }
    return absent;
  }

  static void read_llama3(const JsonView& in, Rope* rope) {
    rope->low_freq_factor = read_number(in, "low_freq_factor", 1e-9, 1e9);
    rope->high_freq_factor = read_number(in, "high_freq_factor", 1e-9, 1e9);
    if (rope->high_freq_factor <= rope->low_freq_factor) {
      in.at("high_freq_factor")
          .fail(fmt::format("is {}; expected more than low_freq_factor, which is {}",
                            rope->high_freq_factor, rope->low_freq_factor));
    }
  }

  static void read_yarn(const JsonView& in, Rope* rope) {
    const double scale = read_number(in, "mscale", 0, 1e9, 0.0);
    const double all = read_number(in, "mscale_all_dim", 0, 1e9, 0.0);
    const double implied = scale != 0 && all != 0 ? yarn_attention(rope->factor, scale) /
                                                        yarn_attention(rope->factor, all)
                                                  : yarn_attention(rope->factor, 1);
    rope->attention_factor = read_number(in, "attention_factor", 1e-9, 1e9, implied);
    rope->beta_fast = read_number(in, "beta_fast", 1e-9, 1e9, 32.0);
    rope->beta_slow = read_number(in, "beta_slow", 1e-9, 1e9, 1.0);
    rope->truncate = in.get_bool("truncate", true);
  }

  void read_longrope(const JsonView& in, Rope* rope) const {
    const int64_t turning = rope->dims > 0 ? rope->dims : config_.head_dim;
    rope->short_factor = read_factors(in, "short_factor", turning / 2);
    rope->long_factor = read_factors(in, "long_factor", turning / 2);
    const double implied =
        rope->factor <= 1
            ? 1
            : std::sqrt(1 + std::log(rope->factor) / std::log(rope->original_max_position));
    rope->attention_factor = read_number(in, "attention_factor", 1e-9, 1e9, implied);
  }

  const JsonView& top_;
  const Family& family_;
  const ModelConfig& config_;
};

}  // namespace

void read_ropes(const JsonView& in, const Family& family, ModelConfig& config) {
  // transformers 4 writes rope_scaling, 5 rope_parameters; a folder may have both, saying the same.
  // Layers with a window may have a rope of their own. Then rope_scaling is that of the other
  // layers, and rope_parameters has an object for each kind of layer.
  const RopeReader reader(in, family, config);
  const bool apart = family.reads(kLocalTheta);
  std::optional<JsonView> scaling, parameters, local;
  if (in.has("rope_scaling")) {
    scaling = in.at("rope_scaling");
  }
  if (in.has("rope_parameters")) {
    parameters = in.at("rope_parameters");
    if (apart && parameters->has("sliding_attention")) {
      local = parameters->at("sliding_attention");
    }
    if (apart && !local && !parameters->has("full_attention") && parameters->size() > 0) {
      parameters->fail(
          "is one rope, which transformers does not read of a model with two; expected "
          "full_attention and sliding_attention in it");
    }
    if (apart && parameters->has("full_attention")) {
      parameters = parameters->at("full_attention");
    } else if (local) {
      parameters.reset();
    }
  }
  const auto read = [&](const std::optional<JsonView>& object) {
    return reader.read(object ? &*object : nullptr, family.key("rope_theta"),
                       family.defaults.theta);
  };
  config.rope = read(scaling ? scaling : parameters);
  if (scaling && parameters && !(read(parameters) == config.rope)) {
    fail(in.where(), "rope_scaling and rope_parameters differ; expected one of them");
  }
  if (apart) {
    constexpr double kTheta = 10000;
    config.window_rope = reader.read(local ? &*local : nullptr, kLocalTheta, kTheta);
  }
}

}  // namespace hocket::models
