// SPDX-License-Identifier: Apache-2.0
// Implements: spec_from_json (tokenizer_impl.h), for files of Hugging Face's `tokenizers` (format
// 1.0). A key that would change the ids and is not built in is refused by name.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/json_steps.h"
#include "data/tokenizer/tokenizer_impl.h"

namespace hocket::data {
namespace {

using Json = nlohmann::json;

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
    // The pre-tokenizers say whether the vocabulary is one of bytes.
    spec_.byte_level = false;
    if (root_.has("pre_tokenizer")) {
      each_part(root_.at("pre_tokenizer"), "pretokenizers", [&](const JsonView& part) {
        add_pretokenizer(part, &spec_.pretokenizers, &spec_.byte_level);
      });
    }
    if (root_.has("normalizer")) {
      each_part(root_.at("normalizer"), "normalizers",
                [&](const JsonView& part) { spec_.normalizers.push_back(normalizer_step(part)); });
    }
    decoders();
    model(root_.at("model"));
    if (root_.has("added_tokens")) {
      added_tokens(root_.at("added_tokens"));
    }
    if (root_.has("post_processor")) {
      each_part(root_.at("post_processor"), "processors",
                [&](const JsonView& part) { post_processor(part); });
    }
    end_of_text(eos_text);
    return std::move(spec_);
  }

 private:
  void decoders() {
    bool bytes = false;
    if (root_.has("decoder")) {
      each_part(root_.at("decoder"), "decoders", [&](const JsonView& part) {
        const std::string type = part.get_string("type");
        if (spec_.byte_level ? type != "ByteLevel" && type != "Fuse" : type == "ByteLevel") {
          part.fail(fmt::format("is {}; expected {}", quote(type),
                                spec_.byte_level
                                    ? "ByteLevel, like the pre-tokenizer"
                                    : "another, for the pre-tokenizer is not ByteLevel"));
        }
        bytes |= type == "ByteLevel";
        if (!spec_.byte_level) {
          add_decoder(part, type);
        }
      });
      if (spec_.byte_level && !bytes) {
        root_.at("decoder").fail("has no ByteLevel; expected one, like the pre-tokenizer");
      }
    } else if (!spec_.byte_level) {
      spec_.decoders.emplace_back().kind = DecoderStep::Kind::join;
    }
  }

  void add_decoder(const JsonView& view, const std::string& type) {
    const DecoderStep step = decoder_step(view, type);
    const bool whole = std::any_of(
        spec_.decoders.begin(), spec_.decoders.end(),
        [](const DecoderStep& before) { return before.kind == DecoderStep::Kind::fuse; });
    if (whole && step.kind != DecoderStep::Kind::strip && step.kind != DecoderStep::Kind::fuse) {
      view.fail(fmt::format("is {} behind Fuse; expected Strip at most", quote(type)));
    }
    spec_.decoders.push_back(step);
  }

  void model(const JsonView& view) {
    const std::string type = view.get_string("type", "BPE");
    if (type == "Unigram") {
      spec_.model = TokenizerSpec::Model::unigram;
      spec_.byte_fallback = view.get_bool("byte_fallback", false);
      spec_.fuse_unk = true;
      scored_vocabulary(view.at("vocab"));
      if (view.has("unk_id")) {
        const int64_t unk = view.get_int("unk_id");
        if (unk < 0 || unk >= std::ssize(spec_.tokens)) {
          view.fail(
              fmt::format("has unk_id {}; expected 0 to {}", unk, std::ssize(spec_.tokens) - 1));
        }
        spec_.unk = static_cast<int32_t>(unk);
      }
      return;
    }
    if (type != "BPE") {
      refuse_part(view, type, "a BPE or Unigram model");
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (const std::string affix = view.get_string(key, ""); !affix.empty()) {
        view.fail(fmt::format("has {} {}; expected none", key, quote(affix)));
      }
    }
    if (view.has("dropout") && view.get_double("dropout") != 0) {
      view.fail("has dropout; expected none");
    }
    spec_.byte_fallback = view.get_bool("byte_fallback", false);
    spec_.fuse_unk = view.get_bool("fuse_unk", false);
    spec_.ignore_merges = view.get_bool("ignore_merges", false);
    vocabulary(view.at("vocab"));
    merges(view.at("merges"));
    if (const std::string unk = view.get_string("unk_token", ""); !unk.empty()) {
      spec_.unk = find(unk);
    }
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

  // The text of a token for the model. One outside of the alphabet is no product of merges; it
  // decodes to itself.
  std::string model_text(const std::string& text) const {
    std::string bytes;
    return spec_.byte_level && from_alphabet(text, &bytes) ? bytes : text;
  }

  void vocabulary(const JsonView& vocab) {
    if (!vocab.is_object()) {
      vocab.fail("is no object; expected token → id");
    }
    if (vocab.size() == 0) {
      vocab.fail("is empty");
    }
    for (const auto& [text, value] : vocab.json().items()) {
      const int32_t id = id_of(JsonView(value, vocab.where() + " vocab " + quote(text)));
      if (text.empty()) {
        vocab.fail("has an empty token");
      }
      std::string& slot = spec_.tokens[id];
      std::string bytes = model_text(text);
      if (!slot.empty()) {
        vocab.fail(fmt::format("gives id {} to both {} and {}", id, quote(slot), quote(bytes)));
      }
      slot = std::move(bytes);
      ids_.emplace(text, id);
    }
  }

  // Unigram's list of tokens and scores.
  void scored_vocabulary(const JsonView& vocab) {
    if (!vocab.is_array() || vocab.size() == 0) {
      vocab.fail("is no list of tokens and scores");
    }
    if (vocab.size() > static_cast<size_t>(kMaxVocab)) {
      vocab.fail(fmt::format("has {} tokens; expected at most {}", vocab.size(), kMaxVocab));
    }
    for (size_t i = 0; i < vocab.size(); ++i) {
      const JsonView entry = vocab.at(i);
      if (!entry.is_array() || entry.size() != 2) {
        entry.fail("is no pair of a token and a score");
      }
      const std::string text = entry.at(0).as_string();
      spec_.tokens.push_back(model_text(text));
      spec_.scores.push_back(entry.at(1).as_double());
      ids_[text] = static_cast<int32_t>(i);
    }
  }

  int32_t known(const JsonView& merge, const std::string& text) {
    const int32_t id = find(text);
    if (id < 0) {
      merge.fail(fmt::format("names {}, which is not in the vocabulary", quote(text)));
    }
    return id;
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

  // Reads added tokens, which are found in the text before it is split. Ids are those of
  // `tokenizers`, whatever the file gives. A text of the vocabulary keeps its id; the others follow
  // the vocabulary in their order.
  void added_tokens(const JsonView& list) {
    if (!list.is_array()) {
      list.fail("is no array");
    }
    int64_t next =
        spec_.model == TokenizerSpec::Model::bpe ? std::ssize(ids_) : std::ssize(spec_.tokens);
    std::unordered_map<std::string, size_t> places;  // in spec_.added
    std::string renumbered;
    for (size_t i = 0; i < list.size(); ++i) {
      const JsonView view = list.at(i);
      AddedToken token;
      token.text = view.get_string("content");
      if (token.text.empty()) {
        view.fail("is empty");
      }
      const int64_t named = view.get_int("id");
      if (named < 0 || named >= kMaxVocab) {
        view.fail(fmt::format("has id {}; expected 0 to {}", named, kMaxVocab - 1));
      }
      token.special = view.get_bool("special", false);
      token.single_word = view.get_bool("single_word", false);
      token.lstrip = view.get_bool("lstrip", false);
      token.rstrip = view.get_bool("rstrip", false);
      token.normalized = view.get_bool("normalized", !token.special);
      const auto [same, is_new] = places.emplace(token.text, spec_.added.size());
      const int32_t in_vocabulary = find(token.text);
      if (!is_new) {
        token.id = spec_.added[same->second].id;
      } else if (in_vocabulary >= 0) {
        token.id = in_vocabulary;
      } else {
        token.id = take_id(view, token.text, next++);
      }
      // A text outside of the alphabet cannot be reached by way of bytes.
      std::string bytes;
      token.in_vocabulary =
          in_vocabulary >= 0 && (!spec_.byte_level || from_alphabet(token.text, &bytes));
      if (named != token.id && renumbered.empty()) {
        renumbered = fmt::format("{} is token {} and not {} as the file has it", quote(token.text),
                                 token.id, named);
      }
      if (is_new) {
        spec_.added.push_back(std::move(token));
      } else {
        spec_.added[same->second] = std::move(token);
      }
    }
    if (!renumbered.empty()) {
      log_warning(
          "{}: the added token {}, since `tokenizers` numbers those without gaps behind "
          "the vocabulary",
          list.where(), renumbered);
    }
  }

  int32_t take_id(const JsonView& view, const std::string& text, int64_t next) {
    if (next >= kMaxVocab) {
      view.fail(fmt::format("is token {}; expected at most {}", next, kMaxVocab - 1));
    }
    const auto id = static_cast<size_t>(next);
    if (id >= spec_.tokens.size()) {
      spec_.tokens.resize(id + 1);
    }
    if (!spec_.tokens[id].empty()) {
      view.fail(
          fmt::format("would be token {} as `tokenizers` counts, which is {}; expected a "
                      "vocabulary without gaps",
                      id, quote(spec_.tokens[id])));
    }
    spec_.tokens[id] = text;
    if (spec_.model == TokenizerSpec::Model::unigram) {
      spec_.scores.resize(spec_.tokens.size());
    }
    return static_cast<int32_t>(id);
  }

  // Adds the ids that a post-processor puts around what those before it made of a text.
  void post_processor(const JsonView& view) {
    const std::string type = view.get_string("type");
    if (type == "ByteLevel") return;  // of offsets alone
    std::vector<int32_t> before, behind;
    if (type == "TemplateProcessing") {
      template_ids(view, &before, &behind);
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      before.push_back(static_cast<int32_t>(view.at("cls").at(1).as_int()));
      behind.push_back(static_cast<int32_t>(view.at("sep").at(1).as_int()));
    } else {
      refuse_part(
          view, type,
          "TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing or a Sequence of "
          "them");
    }
    for (const auto* ids : {&before, &behind}) {
      for (const int32_t id : *ids) {
        if (id < 0 || id >= std::ssize(spec_.tokens)) {
          view.fail(fmt::format("adds id {}; expected 0 to {}", id, std::ssize(spec_.tokens) - 1));
        }
      }
    }
    spec_.prefix.insert(spec_.prefix.begin(), before.begin(), before.end());
    spec_.suffix.insert(spec_.suffix.end(), behind.begin(), behind.end());
  }

  // The template of a single text: special tokens around one sequence.
  void template_ids(const JsonView& view, std::vector<int32_t>* before,
                    std::vector<int32_t>* behind) {
    const JsonView single = view.at("single");
    bool passed = false;
    for (size_t i = 0; i < single.size(); ++i) {
      const JsonView part = single.at(i);
      if (part.has("Sequence")) {
        if (passed) {
          single.fail("has the text twice; expected it once");
        }
        passed = true;
        continue;
      }
      const std::string name = part.at("SpecialToken").get_string("id");
      const JsonView ids = view.at("special_tokens").at(name).at("ids");
      for (size_t k = 0; k < ids.size(); ++k) {
        const int64_t id = ids.at(k).as_int();
        if (id < 0 || id >= kMaxVocab) {
          ids.fail(fmt::format("has id {}; expected 0 to {}", id, kMaxVocab - 1));
        }
        (passed ? behind : before)->push_back(static_cast<int32_t>(id));
      }
    }
    if (!passed) {
      single.fail("has no place for the text");
    }
  }

  // Id of a token of the vocabulary by its text in the file; -1 if there is none.
  int32_t find(const std::string& text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? -1 : found->second;
  }

  void end_of_text(const std::string& configured) {
    const auto any = [&](const std::string& text) {
      for (const AddedToken& added_token : spec_.added) {
        if (added_token.text == text) return added_token.id;
      }
      return find(text);
    };
    if (!configured.empty()) {
      spec_.eos = any(configured);
      if (spec_.eos < 0) {
        root_.fail(
            fmt::format("has no token {}, which tokenizer_config.json (or "
                        "special_tokens_map.json) names as the end of text",
                        quote(configured)));
      }
      return;
    }
    for (const char* text : kUsualEos) {
      spec_.eos = any(text);
      if (spec_.eos >= 0) return;
    }
  }

  JsonView root_;
  TokenizerSpec spec_;
  std::unordered_map<std::string, int32_t> ids_;  // by the text in the file
};

}  // namespace

TokenizerSpec spec_from_json(std::string_view json, const std::string& where,
                             const std::string& eos_text) {
  const Json document = parse_json(json, where);
  return SpecReader(document, where).read(eos_text);
}

}  // namespace hocket::data
