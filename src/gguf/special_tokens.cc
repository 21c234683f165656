// SPDX-License-Identifier: Apache-2.0
#include "gguf/special_tokens.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <variant>

namespace hocket::gguf {
namespace {

std::string key_of(const char* name) { return std::string(kTokenizerPrefix) + name; }

/// Texts of the control tokens by id; empty where the lists are absent or broken, which the reader
/// of the tokenizer reports.
std::map<int64_t, std::string_view> control_tokens(const Metadata& in) {
  std::map<int64_t, std::string_view> out;
  const Value* texts = in.find(key_of("tokens"));
  const Value* kinds = in.find(key_of("token_type"));
  if (texts == nullptr || kinds == nullptr) return out;
  const auto* names = std::get_if<std::vector<std::string>>(&texts->data);
  const auto* types = std::get_if<std::vector<int64_t>>(&kinds->data);
  if (names == nullptr || types == nullptr || names->size() != types->size()) return out;
  for (size_t id = 0; id < names->size(); ++id) {
    if ((*types)[id] == kControl) {
      out.emplace(static_cast<int64_t>(id), (*names)[id]);
    }
  }
  return out;
}

}  // namespace

std::optional<int64_t> special_token(const Metadata& metadata, const char* name) {
  const std::string key = key_of(name), model = key_of("model");
  if (metadata.has(key)) return metadata.integer(key);
  const std::string_view named = name;
  const int64_t usual = named == "bos_token_id" ? 1 : named == "eos_token_id" ? 2 : -1;
  if (usual < 0 || !metadata.has(model) || metadata.string(model) != "llama" ||
      !control_tokens(metadata).contains(usual)) {
    return {};
  }
  return usual;
}

std::vector<int64_t> stop_tokens(const Metadata& metadata) {
  std::vector<int64_t> out;
  const auto add = [&out](int64_t id) {
    if (std::find(out.begin(), out.end(), id) == out.end()) {
      out.push_back(id);
    }
  };
  const std::string turn = key_of("eot_token_id"), message = key_of("eom_token_id");
  if (const auto end = special_token(metadata, "eos_token_id")) {
    add(*end);
  }
  if (metadata.has(turn)) {
    add(metadata.integer(turn));
  } else {
    const std::map<int64_t, std::string_view> tokens = control_tokens(metadata);
    for (const char* text : kTurnEnds) {
      const auto found = std::find_if(tokens.begin(), tokens.end(),
                                      [&](const auto& token) { return token.second == text; });
      if (found == tokens.end()) continue;
      add(found->first);
      break;
    }
  }
  if (metadata.has(message)) {
    add(metadata.integer(message));
  }
  return out;
}

}  // namespace hocket::gguf
