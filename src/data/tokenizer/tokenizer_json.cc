// SPDX-License-Identifier: Apache-2.0
// Implements: reading and writing of TokenizerSpec (tokenizer.h) as a tokenizer.json of Hugging
// Face's `tokenizers` (format 1.0). Whatever would change the ids and is not built in is refused by
// name.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/tokenizer_impl.h"

namespace hocket::data {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// Default end of text: the first present one.
constexpr const char* kUsualEos[] = {"<|endoftext|>", "<|end_of_text|>", "</s>",
                                     "<|im_end|>",    "<|eot_id|>",      "<eos>"};

class SpecReader {
 public:
  SpecReader(const Json& json, const std::string& where) : root_(json, where) {}

  TokenizerSpec read(const std::string& eos_text) {
    if (!root_.is_object()) {
      root_.fail("is no tokenizer; expected an object");
    }
    model(root_.at("model"));
    if (root_.has("normalizer")) {
      normalizer(root_.at("normalizer"));
    }
    if (root_.has("pre_tokenizer")) {
      pre_tokenizer(root_.at("pre_tokenizer"));
    }
    if (!byte_level_) {
      root_.fail("has no ByteLevel pre-tokenizer; expected a byte-level BPE tokenizer");
    }
    if (root_.has("decoder")) {
      decoder(root_.at("decoder"));
    }
    if (root_.has("added_tokens")) {
      added_tokens(root_.at("added_tokens"));
    }
    end_of_text(eos_text);
    return std::move(spec_);
  }

 private:
  void model(const JsonView& view) {
    if (const std::string type = view.get_string("type", "BPE"); type != "BPE") {
      view.fail(fmt::format("is a {} model; expected BPE", quote(type)));
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (const std::string affix = view.get_string(key, ""); !affix.empty()) {
        view.fail(fmt::format("has {} {}; expected none", key, quote(affix)));
      }
    }
    if (view.has("dropout") && view.get_double("dropout") != 0) {
      view.fail("has dropout; expected none");
    }
    if (view.get_bool("byte_fallback", false)) {
      view.fail("has byte_fallback; expected a byte-level vocabulary");
    }
    spec_.ignore_merges = view.get_bool("ignore_merges", false);
    vocabulary(view.at("vocab"));
    merges(view.at("merges"));
  }

  int32_t id_of(const JsonView& value) {
    const int64_t id = value.as_int();
    if (id < 0 || id >= kMaxVocab) {
      value.fail(fmt::format("is {}; expected an id from 0 to {}", id, kMaxVocab - 1));
    }
    if (static_cast<size_t>(id) >= spec_.tokens.size()) {
      spec_.tokens.resize(id + 1);
    }
    return static_cast<int32_t>(id);
  }

  void vocabulary(const JsonView& vocab) {
    if (!vocab.is_object()) {
      vocab.fail("is no object; expected token → id");
    }
    if (vocab.size() == 0) {
      vocab.fail("is empty");
    }
    std::string bytes;
    for (const auto& [text, value] : vocab.json().items()) {
      const int32_t id = id_of(JsonView(value, vocab.where() + " vocab " + quote(text)));
      if (text.empty()) {
        vocab.fail("has an empty token");
      }
      // A text outside of the alphabet is no product of merges; it decodes to itself.
      if (!from_alphabet(text, &bytes)) {
        bytes = text;
      }
      std::string& slot = spec_.tokens[id];
      if (!slot.empty()) {
        vocab.fail(fmt::format("gives id {} to both {} and {}", id, quote(slot), quote(bytes)));
      }
      slot = bytes;
      ids_.emplace(text, id);
    }
  }

  int32_t known(const JsonView& merge, const std::string& text) {
    const auto found = ids_.find(text);
    if (found == ids_.end()) {
      merge.fail(fmt::format("names {}, which is not in the vocabulary", quote(text)));
    }
    return found->second;
  }

  // Reads merges. A merge is a pair of tokens, "a b" in older files and ["a", "b"] in newer ones,
  // which allow blanks in tokens. Its rank is its place in the list.
  void merges(const JsonView& list) {
    const size_t count = list.size();
    if (!list.is_array()) {
      list.fail("is no array");
    }
    spec_.merges.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const JsonView merge = list.at(i);
      std::string left, right;
      if (merge.is_string()) {
        const std::string& both = merge.as_string();
        const size_t blank = both.find(' ');
        if (blank == std::string::npos || both.find(' ', blank + 1) != std::string::npos) {
          merge.fail(fmt::format("is {}; expected two tokens and a blank", quote(both)));
        }
        left = both.substr(0, blank);
        right = both.substr(blank + 1);
      } else {
        if (!merge.is_array() || merge.size() != 2) {
          merge.fail("is no pair of tokens");
        }
        left = merge.at(0).as_string();
        right = merge.at(1).as_string();
      }
      spec_.merges.push_back({known(merge, left), known(merge, right)});
      if (!ids_.contains(left + right)) {
        merge.fail(fmt::format("makes {}, which is not in the vocabulary", quote(left + right)));
      }
    }
  }

  void normalizer(const JsonView& view) {
    const std::string type = view.get_string("type");
    if (type == "NFC") {
      spec_.nfc = true;
    } else if (type == "Sequence") {
      const JsonView parts = view.at("normalizers");
      for (size_t i = 0; i < parts.size(); ++i) {
        normalizer(parts.at(i));
      }
    } else {
      view.fail(fmt::format("is {}; expected NFC or none", quote(type)));
    }
  }

  void pre_tokenizer(const JsonView& view) {
    const std::string type = view.get_string("type");
    if (type == "Sequence") {
      const JsonView parts = view.at("pretokenizers");
      for (size_t i = 0; i < parts.size(); ++i) {
        pre_tokenizer(parts.at(i));
      }
    } else if (type == "ByteLevel" && !byte_level_) {
      byte_level_ = true;
      spec_.add_prefix_space = view.get_bool("add_prefix_space", true);
      if (view.get_bool("use_regex", true)) {
        split(view, kGpt2Pattern);
      }
      if (spec_.add_prefix_space && split_before_) {
        view.fail("adds a blank to every piece of a Split; expected add_prefix_space false");
      }
    } else if (type == "Split" && !byte_level_) {
      const std::string behavior = view.get_string("behavior");
      // Pieces between matches are kept by both; so are the matches themselves.
      if (behavior != "Isolated" || view.get_bool("invert", false)) {
        view.fail(
            fmt::format("has behavior {}; expected \"Isolated\", not inverted", quote(behavior)));
      }
      split(view, view.at("pattern").get_string("Regex"));
      split_before_ = true;
    } else {
      view.fail(
          fmt::format("is {}; expected ByteLevel, or one Split and then ByteLevel", quote(type)));
    }
  }

  void split(const JsonView& view, const std::string& pattern) {
    if (!spec_.pattern.empty()) {
      view.fail("splits a second time; expected one Split at most");
    }
    if (pattern.empty()) {
      view.fail("has an empty pattern");
    }
    spec_.pattern = pattern;
  }

  void decoder(const JsonView& view) {
    const std::string type = view.get_string("type");
    if (type != "ByteLevel") {
      view.fail(fmt::format("is {}; expected ByteLevel", quote(type)));
    }
  }

  // Added tokens are found in the text before it is split. One may repeat a token of the
  // vocabulary, with the same id, or have an id that is free there.
  void added_tokens(const JsonView& list) {
    if (!list.is_array()) {
      list.fail("is no array");
    }
    for (size_t i = 0; i < list.size(); ++i) {
      const JsonView view = list.at(i);
      AddedToken token;
      token.text = view.get_string("content");
      if (token.text.empty()) {
        view.fail("is empty");
      }
      token.id = id_of(view.at("id"));
      token.special = view.get_bool("special", false);
      token.single_word = view.get_bool("single_word", false);
      token.lstrip = view.get_bool("lstrip", false);
      token.rstrip = view.get_bool("rstrip", false);
      token.normalized = view.get_bool("normalized", !token.special);
      const auto found = ids_.find(token.text);
      std::string& slot = spec_.tokens[token.id];
      if (found != ids_.end() ? found->second != token.id : !slot.empty()) {
        view.fail(fmt::format("gives {} id {}, which is taken or not its own in the vocabulary",
                              quote(token.text), token.id));
      }
      slot = token.text;
      spec_.added.push_back(std::move(token));
    }
  }

  void end_of_text(const std::string& configured) {
    const auto find = [&](std::string_view text) {
      for (const AddedToken& added_token : spec_.added) {
        if (added_token.text == text) return added_token.id;
      }
      const auto found = ids_.find(std::string(text));
      return found == ids_.end() ? -1 : found->second;
    };
    if (!configured.empty()) {
      spec_.eos = find(configured);
      if (spec_.eos < 0) {
        root_.fail(
            fmt::format("has no token {}, which tokenizer_config.json names as the end of "
                        "text",
                        quote(configured)));
      }
      return;
    }
    for (const char* text : kUsualEos) {
      spec_.eos = find(text);
      if (spec_.eos >= 0) return;
    }
  }

  JsonView root_;
  TokenizerSpec spec_;
  std::unordered_map<std::string, int32_t> ids_;  // by the text in the file
  bool byte_level_ = false;
  bool split_before_ = false;
};

OrderedJson byte_level(bool prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

}  // namespace

TokenizerSpec spec_from_json(std::string_view json, const std::string& where,
                             const std::string& eos_text) {
  const Json document = parse_json(json, where);
  return SpecReader(document, where).read(eos_text);
}

std::string spec_to_json(const TokenizerSpec& spec) {
  std::vector<std::string> texts;
  texts.reserve(spec.tokens.size());
  for (const std::string& bytes : spec.tokens) {
    texts.push_back(to_alphabet(bytes));
  }
  OrderedJson added = OrderedJson::array();
  for (const AddedToken& added_token : spec.added) {
    texts[added_token.id] = added_token.text;
    added.push_back({{"id", added_token.id},
                     {"content", added_token.text},
                     {"single_word", added_token.single_word},
                     {"lstrip", added_token.lstrip},
                     {"rstrip", added_token.rstrip},
                     {"normalized", added_token.normalized},
                     {"special", added_token.special}});
  }
  OrderedJson vocab = OrderedJson::object();
  // Straight into the sequence: ordered_json's operator[] looks at every key before.
  auto& entries = vocab.get_ref<OrderedJson::object_t&>();
  for (size_t id = 0; id < texts.size(); ++id) {
    if (!texts[id].empty()) {
      entries.emplace_back(texts[id], id);
    }
  }
  OrderedJson merges = OrderedJson::array();
  for (const auto& [left, right] : spec.merges) {
    merges.push_back(texts[left] + " " + texts[right]);
  }
  OrderedJson pre = byte_level(spec.add_prefix_space, spec.pattern == kGpt2Pattern);
  if (!spec.pattern.empty() && spec.pattern != kGpt2Pattern) {
    pre = {{"type", "Sequence"},
           {"pretokenizers",
            {{{"type", "Split"},
              {"pattern", {{"Regex", spec.pattern}}},
              {"behavior", "Isolated"},
              {"invert", false}},
             pre}}};
  }
  OrderedJson root = {{"version", "1.0"},
                      {"truncation", nullptr},
                      {"padding", nullptr},
                      {"added_tokens", added},
                      {"normalizer", nullptr},
                      {"pre_tokenizer", pre},
                      {"post_processor", nullptr},
                      {"decoder", byte_level(true, true)},
                      {"model",
                       {{"type", "BPE"},
                        {"dropout", nullptr},
                        {"unk_token", nullptr},
                        {"continuing_subword_prefix", nullptr},
                        {"end_of_word_suffix", nullptr},
                        {"fuse_unk", false},
                        {"byte_fallback", false},
                        {"ignore_merges", spec.ignore_merges},
                        {"vocab", vocab},
                        {"merges", merges}}}};
  if (spec.nfc) {
    root["normalizer"] = {{"type", "NFC"}};
  }
  return root.dump(1) + "\n";
}

}  // namespace hocket::data
