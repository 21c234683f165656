// SPDX-License-Identifier: Apache-2.0
#include "gguf/special_tokens.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace hocket::gguf {
namespace {

std::string key_of(const char* name) { return std::string(kTokenizerPrefix) + name; }

/// Returns a list of the tokenizer; null where it is absent or broken, which the reader of the
/// tokenizer reports.
template <typename T>
const std::vector<T>* list_of(const Metadata& in, const char* name) {
  const Value* value = in.find(key_of(name));
  return value == nullptr ? nullptr : std::get_if<std::vector<T>>(&value->data);
}

bool is_control(const Metadata& in, int64_t id) {
  const auto* texts = list_of<std::string>(in, "tokens");
  const auto* kinds = list_of<int64_t>(in, "token_type");
  return texts != nullptr && kinds != nullptr && texts->size() == kinds->size() &&
         id < std::ssize(*kinds) && (*kinds)[static_cast<size_t>(id)] == kControl;
}

/// Returns the first token of kTurnEnds. llama.cpp takes each for a control token, whatever its
/// kind in the file: converters have given <|im_end|> the type user-defined.
std::optional<int64_t> turn_end(const Metadata& in) {
  const auto* texts = list_of<std::string>(in, "tokens");
  if (texts == nullptr) return {};
  for (const char* text : kTurnEnds) {
    const auto found = std::find(texts->begin(), texts->end(), text);
    if (found != texts->end()) return found - texts->begin();
  }
  return {};
}

}  // namespace

std::optional<int64_t> special_token(const Metadata& metadata, const char* name) {
  const std::string key = key_of(name), model = key_of("model");
  if (metadata.has(key)) return metadata.integer(key);
  const std::string_view named = name;
  const int64_t usual = named == "bos_token_id" ? 1 : named == "eos_token_id" ? 2 : -1;
  if (usual < 0 || !metadata.has(model) || metadata.string(model) != "llama" ||
      !is_control(metadata, usual)) {
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
  } else if (const auto end = turn_end(metadata)) {
    add(*end);
  }
  if (metadata.has(message)) {
    add(metadata.integer(message));
  }
  return out;
}

}  // namespace hocket::gguf
