// SPDX-License-Identifier: Apache-2.0
// The codecs that gradients travel through, and which one each of them takes: plan.grad_codec, and
// plan.grad_codec_of before it.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "graph/graph.h"
#include "ops/op.h"

namespace hocket::passes {

/// The two ops of a codec.
struct CodecOps {
  const ops::Op* encode = nullptr;
  const ops::Op* decode = nullptr;

  explicit CodecOps(std::string_view name);
  /// Types of the codes. Throws Error if it does not take such a tensor.
  std::vector<graph::TensorType> codes(const graph::TensorType& type) const;
  bool takes(const graph::TensorType& type) const;
  static graph::Attrs back_to(const graph::TensorType& type);
  /// Returns whether rows (indices of dim 0) are encoded one by one, each into rows of all codes.
  bool by_rows(const graph::TensorType& type) const;
};

/// Route of codes along an axis of ranks (compress.cc): the one with fewer bytes, or that of a rule
/// if rows divide.
enum class Route { least_bytes, at_once, by_blocks };
/// "at_once" or "by_blocks"; of least_bytes empty.
const char* to_string(Route route);

struct GradCodecOptions {
  std::string grad_codec = "none";
  std::vector<std::string> grad_codec_of;
  void fields(Fields& visit);
};

/// The codec of every gradient.
class Codecs {
 public:
  /// Throws Error for a rule that is none, or of an unknown codec.
  explicit Codecs(const GradCodecOptions& options);

  /// Returns whether some gradient may have a codec.
  bool any() const { return fallback_ != nullptr || !rules_.empty(); }
  /// Returns the codec of a parameter's gradient; null: none. Without a name: plan.grad_codec.
  const CodecOps* of(const std::string& parameter) const;
  /// The route that its rule says.
  Route route_of(const std::string& parameter) const;
  /// Returns whether its rule encodes and decodes on the host.
  bool is_on_host(const std::string& parameter) const;
  /// Returns a codec by its name. Throws Error if there is none.
  const CodecOps& named(const std::string& name) const;
  /// Notes that there is a sum of the parameter's gradient, if some codec `takes` it.
  void note(const std::string& parameter, const std::function<bool(const CodecOps&)>& takes);
  /// Returns whether a gradient was noted.
  bool any_known() const { return !known_.empty(); }
  /// Throws Error if a rule concerns none of the gradients that were noted.
  void expect_matched() const;

 private:
  struct Rule {
    std::string text, pattern;
    const CodecOps* codec = nullptr;
    Route route = Route::least_bytes;
    bool on_host = false;
    bool matched = false;
  };
  const Rule* rule_of(const std::string& parameter) const;
  static bool matches(const Rule& rule, const std::string& parameter);
  Rule parse(const std::string& text) const;

  std::map<std::string, CodecOps> ops_;
  const CodecOps* fallback_ = nullptr;
  std::vector<Rule> rules_;
  std::set<std::string> known_;  ///< parameters with gradients that may be encoded
};

}  // namespace hocket::passes
