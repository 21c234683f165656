// SPDX-License-Identifier: Apache-2.0
// Implements: spec_to_json (tokenizer_impl.h), a tokenizer.json that `tokenizers` opens.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/tokenizer_impl.h"

namespace hocket::data {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson byte_level(bool prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

const char* name_of(PretokenizerStep::Behavior behavior) {
  switch (behavior) {
    case PretokenizerStep::Behavior::isolated:
      return "Isolated";
    case PretokenizerStep::Behavior::contiguous:
      return "Contiguous";
    case PretokenizerStep::Behavior::merged_with_previous:
      return "MergedWithPrevious";
    case PretokenizerStep::Behavior::merged_with_next:
      return "MergedWithNext";
    case PretokenizerStep::Behavior::removed:
      return "Removed";
  }
  return "";
}

const char* name_of(Prepend prepend) {
  return prepend == Prepend::always ? "always" : prepend == Prepend::first ? "first" : "never";
}

std::string base64(std::string_view bytes) {
  constexpr const char* kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const std::string_view group = bytes.substr(i, 3);
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (k < group.size() ? static_cast<uint8_t>(group[k]) : 0);
    }
    for (size_t k = 0; k < 4; ++k) {
      out += k <= group.size() ? kDigits[bits >> (18 - 6 * k) & 63] : '=';
    }
  }
  return out;
}

OrderedJson pattern_of(const std::string& text, bool regex) {
  return {{regex ? "Regex" : "String", text}};
}

OrderedJson normalizer(const NormalizerStep& step) {
  using Kind = NormalizerStep::Kind;
  switch (step.kind) {
    case Kind::nfc:
      return {{"type", "NFC"}};
    case Kind::nfd:
      return {{"type", "NFD"}};
    case Kind::nfkc:
      return {{"type", "NFKC"}};
    case Kind::nfkd:
      return {{"type", "NFKD"}};
    case Kind::lowercase:
      return {{"type", "Lowercase"}};
    case Kind::strip_accents:
      return {{"type", "StripAccents"}};
    case Kind::strip:
      return {{"type", "Strip"}, {"strip_left", step.left}, {"strip_right", step.right}};
    case Kind::prepend:
      return {{"type", "Prepend"}, {"prepend", step.content}};
    case Kind::replace:
      return {{"type", "Replace"},
              {"pattern", pattern_of(step.pattern, step.regex)},
              {"content", step.content}};
    case Kind::precompiled:
      return {{"type", "Precompiled"}, {"precompiled_charsmap", base64(step.content)}};
  }
  return nullptr;
}

OrderedJson decoder(const DecoderStep& step) {
  using Kind = DecoderStep::Kind;
  switch (step.kind) {
    case Kind::metaspace:
      return {{"type", "Metaspace"},
              {"replacement", step.pattern},
              {"prepend_scheme", name_of(step.prepend)},
              {"split", true}};
    case Kind::byte_fallback:
      return {{"type", "ByteFallback"}};
    case Kind::replace:
      return {{"type", "Replace"},
              {"pattern", pattern_of(step.pattern, false)},
              {"content", step.content}};
    case Kind::strip:
      return {
          {"type", "Strip"}, {"content", step.content}, {"start", step.start}, {"stop", step.stop}};
    case Kind::fuse:
      return {{"type", "Fuse"}};
    case Kind::join:
      return nullptr;  // the default of a file without decoder
  }
  return nullptr;
}

// Returns null for no part, the part itself, or a Sequence of several.
OrderedJson sequence(const std::vector<OrderedJson>& parts, const char* list) {
  if (parts.empty()) return nullptr;
  if (parts.size() == 1) return parts[0];
  return {{"type", "Sequence"}, {list, parts}};
}

OrderedJson pretokenizers(const TokenizerSpec& spec) {
  using Kind = PretokenizerStep::Kind;
  std::vector<OrderedJson> parts;
  bool prefix_space = false, gpt2 = false;
  for (const PretokenizerStep& step : spec.pretokenizers) {
    const bool last = &step == &spec.pretokenizers.back();
    if ((prefix_space && step.kind == Kind::prefix_space) || (!spec.byte_level && prefix_space)) {
      fail("tokenizer", "a blank before each piece has no form in tokenizer.json but ByteLevel's");
    }
    if (step.kind == Kind::prefix_space) {
      prefix_space = true;
    } else if (step.kind == Kind::metaspace) {
      parts.push_back({{"type", "Metaspace"},
                       {"replacement", step.replacement},
                       {"prepend_scheme", name_of(step.prepend)},
                       {"split", step.cut}});
    } else if (last && spec.byte_level && step.pattern == kGpt2Pattern && !step.invert &&
               step.behavior == PretokenizerStep::Behavior::isolated) {
      gpt2 = true;  // ByteLevel's own
    } else {
      parts.push_back({{"type", "Split"},
                       {"pattern", pattern_of(step.pattern, true)},
                       {"behavior", name_of(step.behavior)},
                       {"invert", step.invert}});
    }
  }
  if (spec.byte_level) {
    parts.push_back(byte_level(prefix_space, gpt2));
  }
  return sequence(parts, "pretokenizers");
}

// A template that puts ids before and behind a text, and behind each of two.
OrderedJson post_processor(const TokenizerSpec& spec, const std::vector<std::string>& texts) {
  if (spec.prefix.empty() && spec.suffix.empty()) return nullptr;
  OrderedJson single = OrderedJson::array(), pair = OrderedJson::array(),
              tokens = OrderedJson::object();
  const auto put = [&](const std::vector<int32_t>& ids, OrderedJson* list, int64_t type) {
    for (const int32_t id : ids) {
      list->push_back({{"SpecialToken", {{"id", texts[id]}, {"type_id", type}}}});
      tokens[texts[id]] = {{"id", texts[id]}, {"ids", {id}}, {"tokens", {texts[id]}}};
    }
  };
  const auto text = [&](const char* name, OrderedJson* list, int64_t type) {
    put(spec.prefix, list, type);
    list->push_back({{"Sequence", {{"id", name}, {"type_id", type}}}});
    put(spec.suffix, list, type);
  };
  text("A", &single, 0);
  text("A", &pair, 0);
  text("B", &pair, 1);
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", tokens}};
}

// Texts of the ids in the file: bytes in their alphabet, added tokens as they are.
std::vector<std::string> file_texts(const TokenizerSpec& spec) {
  std::vector<std::string> texts;
  texts.reserve(spec.tokens.size());
  for (const std::string& text : spec.tokens) {
    texts.push_back(spec.byte_level ? to_alphabet(text) : text);
  }
  for (const AddedToken& added : spec.added) {
    texts[added.id] = added.text;
  }
  return texts;
}

OrderedJson added_tokens(const TokenizerSpec& spec) {
  OrderedJson list = OrderedJson::array();
  for (const AddedToken& added : spec.added) {
    list.push_back({{"id", added.id},
                    {"content", added.text},
                    {"single_word", added.single_word},
                    {"lstrip", added.lstrip},
                    {"rstrip", added.rstrip},
                    {"normalized", added.normalized},
                    {"special", added.special}});
  }
  return list;
}

OrderedJson bpe(const TokenizerSpec& spec, const std::vector<std::string>& texts) {
  OrderedJson vocab = OrderedJson::object();
  // Straight into the sequence: ordered_json's operator[] looks at every key before.
  auto& entries = vocab.get_ref<OrderedJson::object_t&>();
  for (size_t id = 0; id < texts.size(); ++id) {
    if (!texts[id].empty()) {
      entries.emplace_back(texts[id], id);
    }
  }
  // The short form has no place for blanks.
  const bool blanks = std::any_of(spec.merges.begin(), spec.merges.end(), [&](const auto& merge) {
    return texts[merge[0]].find(' ') != std::string::npos ||
           texts[merge[1]].find(' ') != std::string::npos;
  });
  OrderedJson merges = OrderedJson::array();
  for (const auto& [left, right] : spec.merges) {
    if (blanks) {
      merges.push_back(OrderedJson::array({texts[left], texts[right]}));
    } else {
      merges.push_back(texts[left] + " " + texts[right]);
    }
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", spec.unk < 0 ? OrderedJson(nullptr) : OrderedJson(texts[spec.unk])},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", spec.fuse_unk},
          {"byte_fallback", spec.byte_fallback},
          {"ignore_merges", spec.ignore_merges},
          {"vocab", vocab},
          {"merges", merges}};
}

OrderedJson unigram(const TokenizerSpec& spec, const std::vector<std::string>& texts) {
  // Added tokens at the end are numbered without the list.
  std::vector<bool> only_added(texts.size(), false);
  for (const AddedToken& added : spec.added) {
    only_added[added.id] = !added.in_vocabulary;
  }
  size_t count = texts.size();
  while (count > 0 && only_added[count - 1]) {
    --count;
  }
  OrderedJson vocab = OrderedJson::array();
  for (size_t id = 0; id < count; ++id) {
    vocab.push_back(OrderedJson::array({texts[id], spec.scores[id]}));
  }
  return {{"type", "Unigram"},
          {"unk_id", spec.unk < 0 ? OrderedJson(nullptr) : OrderedJson(spec.unk)},
          {"vocab", vocab},
          {"byte_fallback", spec.byte_fallback}};
}

}  // namespace

std::string spec_to_json(const TokenizerSpec& spec) {
  const std::vector<std::string> texts = file_texts(spec);
  std::vector<OrderedJson> normalizers, decoders;
  for (const NormalizerStep& step : spec.normalizers) {
    normalizers.push_back(normalizer(step));
  }
  for (const DecoderStep& step : spec.decoders) {
    decoders.push_back(decoder(step));
  }
  const bool is_bpe = spec.model == TokenizerSpec::Model::bpe;
  const OrderedJson root = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added_tokens(spec)},
      {"normalizer", sequence(normalizers, "normalizers")},
      {"pre_tokenizer", pretokenizers(spec)},
      {"post_processor", post_processor(spec, texts)},
      {"decoder", spec.byte_level ? byte_level(true, true) : sequence(decoders, "decoders")},
      {"model", is_bpe ? bpe(spec, texts) : unigram(spec, texts)}};
  return root.dump(1) + "\n";
}

}  // namespace hocket::data
