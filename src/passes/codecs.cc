// SPDX-License-Identifier: Apache-2.0
#include "passes/codecs.h"

#include <fnmatch.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "passes/compress.h"

namespace hocket::passes {

using graph::TensorType;

std::vector<std::string> codec_names() {
  std::vector<std::string> names{kNoCodec};
  for (const ops::Op* op : ops::all()) {
    if (op->codec.name && op->codec.role == ops::Codec::Role::encode) {
      names.emplace_back(op->codec.name);
    }
  }
  return names;
}

const char* to_string(Route route) {
  switch (route) {
    case Route::least_bytes:
      return "";
    case Route::at_once:
      return "at_once";
    case Route::by_blocks:
      return "by_blocks";
  }
  return "";
}

CodecOps::CodecOps(std::string_view name) {
  for (const ops::Op* op : ops::all()) {
    if (op->codec.name == nullptr || op->codec.name != name) continue;
    (op->codec.role == ops::Codec::Role::encode ? encode : decode) = op;
  }
  HOCKET_CHECK(encode && decode, "no codec {}", name);
}

std::vector<TensorType> CodecOps::codes(const TensorType& type) const {
  return encode->infer({}, std::vector{type});
}

bool CodecOps::takes(const TensorType& type) const {
  try {
    return !codes(type).empty();
  } catch (const Error&) {
    return false;
  }
}

graph::Attrs CodecOps::back_to(const TensorType& type) {
  return {{"dtype", std::string(to_string(type.dtype))}};
}

bool CodecOps::by_rows(const TensorType& type) const {
  const ops::Letters letters = ops::letters(*encode, std::vector{type}, codes(type));
  const char row = letters.in[0][0];
  return std::string_view(encode->layout.split).find(row) != std::string_view::npos &&
         !encode->layout.is_positional(row) &&
         std::all_of(letters.out.begin(), letters.out.end(),
                     [row](const std::string& out) { return !out.empty() && out[0] == row; });
}

void GradCodecOptions::fields(Fields& visit) {
  visit("grad_codec", grad_codec, "codec of gradient all-reduces").one_of(codec_names());
  visit("grad_codec_of", grad_codec_of,
        "codecs of single gradients, \"PATTERN CODEC\" each, before plan.grad_codec: PATTERN "
        "matches names of parameters (* and ?), the last match counts, and CODEC none leaves "
        "gradients as they are; at_once or by_blocks behind it gives the route of the codes, host "
        "at the end encodes and decodes on the host's CPU in place of the device; `hocket plan "
        "codecs` chooses them (docs/planner.md)");
}

Codecs::Codecs(const GradCodecOptions& options) {
  for (const std::string& name : codec_names()) {
    if (name != kNoCodec) {
      ops_.try_emplace(name, name);
    }
  }
  if (options.grad_codec != kNoCodec) {
    fallback_ = &named(options.grad_codec);
  }
  for (const std::string& text : options.grad_codec_of) {
    rules_.push_back(parse(text));
  }
}

const Codecs::Rule* Codecs::rule_of(const std::string& parameter) const {
  const auto last = std::find_if(rules_.rbegin(), rules_.rend(),
                                 [&](const Rule& rule) { return matches(rule, parameter); });
  return last == rules_.rend() ? nullptr : &*last;
}

const CodecOps* Codecs::of(const std::string& parameter) const {
  const Rule* rule = rule_of(parameter);
  return rule == nullptr ? fallback_ : rule->codec;
}

Route Codecs::route_of(const std::string& parameter) const {
  const Rule* rule = rule_of(parameter);
  return rule == nullptr ? Route::least_bytes : rule->route;
}

bool Codecs::is_on_host(const std::string& parameter) const {
  const Rule* rule = rule_of(parameter);
  return rule != nullptr && rule->on_host;
}

const CodecOps& Codecs::named(const std::string& name) const {
  const auto found = ops_.find(name);
  if (found == ops_.end()) {
    fail("codecs", "unknown codec '{}'; expected one of {}", name, join(codec_names(), ", "));
  }
  return found->second;
}

void Codecs::note(const std::string& parameter, const std::function<bool(const CodecOps&)>& takes) {
  if (rules_.empty() || parameter.empty()) return;
  const bool taken =
      std::any_of(ops_.begin(), ops_.end(), [&](const auto& codec) { return takes(codec.second); });
  if (!taken) return;
  known_.insert(parameter);
  for (Rule& rule : rules_) {
    rule.matched = rule.matched || matches(rule, parameter);
  }
}

void Codecs::expect_matched() const {
  for (const Rule& rule : rules_) {
    if (rule.matched) continue;
    fail("plan.grad_codec_of",
         "'{}' matches no gradient that can travel as codes; expected a name or pattern "
         "of parameters with two dims or more and all-reduced gradients; try {}",
         rule.text, join({known_.begin(), known_.end()}, ", "));
  }
}

bool Codecs::matches(const Rule& rule, const std::string& parameter) {
  return !parameter.empty() && fnmatch(rule.pattern.c_str(), parameter.c_str(), 0) == 0;
}

Codecs::Rule Codecs::parse(const std::string& text) const {
  // Parsed from the end: `host`, the route, the codec; the rest is the pattern.
  Rule rule;
  rule.text = rule.pattern = text;
  const auto last_word = [&] {
    const size_t space = rule.pattern.rfind(' ');
    return space == std::string::npos ? "" : rule.pattern.substr(space + 1);
  };
  const auto ends_with = [&](const char* word) {
    if (last_word() != word) return false;
    rule.pattern.resize(rule.pattern.rfind(' '));
    return true;
  };
  rule.on_host = ends_with(kOnHost);
  for (const Route route : {Route::at_once, Route::by_blocks}) {
    if (ends_with(to_string(route))) {
      rule.route = route;
      break;
    }
  }
  const std::string codec = last_word();
  const auto found = ops_.find(codec);
  const bool is_none = codec == kNoCodec && rule.route == Route::least_bytes && !rule.on_host;
  const size_t space = rule.pattern.rfind(' ');
  if (space == 0 || (!is_none && found == ops_.end())) {
    fail("plan.grad_codec_of",
         "got '{}'; expected PATTERN CODEC, CODEC one of {}, and of a codec at_once or by_blocks "
         "behind it if one is to be taken, and host if the CPU is to do it; try "
         "'*.mlp.down_proj.weight int8'",
         text, join(codec_names(), ", "));
  }
  rule.pattern.resize(space);
  rule.codec = found == ops_.end() ? nullptr : &found->second;
  return rule;
}

}  // namespace hocket::passes
