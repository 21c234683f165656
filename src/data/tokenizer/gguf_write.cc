// SPDX-License-Identifier: Apache-2.0
// Implements: add_gguf_tokenizer (gguf.h), tokenizer.json → the metadata of a GGUF file.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "data/tokenizer/gguf.h"
#include "data/tokenizer/gguf_kinds.h"
#include "data/tokenizer/tokenizer_spec.h"

namespace hocket::data {
namespace {

using namespace gguf_kinds;

/// Reads a tokenizer.json into the lists of a GGUF file.
class TokenizerExport {
 public:
  TokenizerExport(const JsonView& root, int64_t vocabulary) : root_(root), size_(vocabulary) {}

  void write(gguf::Metadata& out) {
    const JsonView model = root_.at("model");
    if (model.get_string("type", "BPE") != "BPE") {
      model.fail(fmt::format("is {}, which GGUF has no name for; expected BPE",
                             quote(model.get_string("type"))));
    }
    const JsonView vocab = model.at("vocab");
    for (const auto& [text, id] : vocab.json().items()) {
      put(JsonView(id, vocab.where()), text, kNormal);
    }
    added_tokens();
    for (int64_t id = 0; id < size_; ++id) {
      tokens_.try_emplace(id, fmt::format("[PAD{}]", id), kUnused);
    }
    if (model.get_bool("byte_fallback", false)) {
      write_scored(model, out);
    } else {
      write_byte_level(model, out);
    }
  }

  /// Returns the id of a text; nothing if there is none.
  std::optional<int64_t> find(const std::string& text) const {
    for (const auto& [id, token] : tokens_) {
      if (token.first == text && token.second != kUnused) return id;
    }
    return {};
  }

 private:
  static std::string key_of(const char* name) { return std::string(kPrefix) + name; }

  void write_tokens(gguf::Metadata& out) const {
    std::vector<std::string> texts;
    std::vector<int64_t> kinds;
    for (const auto& [id, token] : tokens_) {
      texts.push_back(token.first);
      kinds.push_back(token.second);
    }
    out.add(key_of("tokens"), gguf::Value::of_strings(std::move(texts)));
    out.add(key_of("token_type"), gguf::Value::of_i32s(std::move(kinds)));
  }

  void write_byte_level(const JsonView& model, gguf::Metadata& out) const {
    const bool whole_words = model.get_bool("ignore_merges", false);
    out.add(key_of("model"), gguf::Value::of_string("gpt2"));
    out.add(key_of("pre"), gguf::Value::of_string(pretokenizer(whole_words).names[0]));
    write_tokens(out);
    std::vector<std::string> lines;
    const JsonView list = model.at("merges");
    for (size_t i = 0; i < list.size(); ++i) {
      const auto [left, right] = merge(list.at(i));
      if ((left + right).find(' ') != std::string::npos) {
        list.at(i).fail("has a blank in a token, which GGUF cannot say");
      }
      lines.push_back(left + " " + right);
    }
    out.add(key_of("merges"), gguf::Value::of_strings(std::move(lines)));
  }

  /// Writes a BPE of characters with scores in place of merges: llama.cpp joins any two tokens that
  /// make a third one, those with the highest score first. Throws Error if the merges say something
  /// else.
  void write_scored(const JsonView& model, gguf::Metadata& out) {
    if (model.get_bool("ignore_merges", false)) {
      model.at("ignore_merges").fail("is true, which GGUF cannot say with byte_fallback");
    }
    const bool prefix = marks_beginning();
    std::unordered_map<std::string, int64_t> ids;
    for (auto& [id, token] : tokens_) {
      if (is_byte(token.first) && token.second == kNormal) {
        token.second = kByte;
      }
      if (token.second == kNormal || token.second == kUserDefined) {
        ids.emplace(token.first, id);
      }
    }
    std::vector<double> scores(tokens_.size());
    const JsonView list = model.at("merges");
    std::string last;
    double rank = 0;
    std::unordered_map<std::string, size_t> cuts;  // merges of each token
    for (size_t i = 0; i < list.size(); ++i) {
      const auto [left, right] = merge(list.at(i));
      const std::string both = left + right;
      if (!ids.contains(both)) {
        list.at(i).fail("makes no token that a text may hold");
      }
      if (cuts[both]++ > 0 && both != last) {
        list.at(i).fail(
            fmt::format("makes {} as an earlier merge does, with others between them, "
                        "which GGUF cannot say",
                        quote(both)));
      }
      if (both != last) {
        scores[static_cast<size_t>(ids.at(both))] = --rank;
      }
      last = both;
    }
    for (const auto& [text, id] : ids) {
      // A user's token is found before the text is cut into characters.
      if (tokens_.at(id).second == kUserDefined && !cuts.contains(text)) continue;
      size_t possible = 0;
      for (size_t at = 1; at < text.size(); ++at) {
        possible += ids.contains(text.substr(0, at)) && ids.contains(text.substr(at));
      }
      const auto found = cuts.find(text);
      if (const size_t there = found == cuts.end() ? 0 : found->second; there != possible) {
        list.fail(
            fmt::format("has {} for {}; expected {}, every cut of it into two tokens, as GGUF "
                        "has no merges",
                        counted(there, "merge"), quote(text), possible));
      }
    }
    if (const std::string unknown = model.get_string("unk_token", ""); !unknown.empty()) {
      const auto id = find(unknown);
      if (!id) {
        model.at("unk_token").fail(fmt::format("is {}, which is no token", quote(unknown)));
      }
      tokens_[*id].second = kUnknown;
      out.add(key_of("unknown_token_id"), gguf::Value::of_u32(*id));
    }
    out.add(key_of("model"), gguf::Value::of_string("llama"));
    out.add(key_of("pre"), gguf::Value::of_string("default"));
    write_tokens(out);
    out.add(key_of("scores"), gguf::Value::of_f32s(std::move(scores)));
    out.add(key_of("add_space_prefix"), gguf::Value::of_bool(prefix));
  }

  /// Returns whether a text names a byte, as "<0x0A>" does.
  static bool is_byte(const std::string& text) {
    return text.size() == 6 && text.starts_with("<0x") && text.ends_with(">") &&
           text.find_first_not_of("0123456789ABCDEF", 3) == 5;
  }

  /// Returns whether a blank is put before every text. Throws Error for normalizers and
  /// pre-tokenizers that do more than that and marking blanks.
  bool marks_beginning() const {
    bool prefix = false, marks = false;
    const auto refuse = [](const JsonView& step) {
      step.fail("is not one that GGUF can say with byte_fallback; expected blanks that become ▁");
    };
    if (root_.has("normalizer")) {
      for (const JsonView& step : parts_of(root_.at("normalizer"), "normalizers")) {
        const std::string type = step.get_string("type");
        if (type == "Prepend" && step.get_string("prepend") == kBlank && !marks) {
          prefix = true;
        } else if (type == "Replace" && step.at("pattern").get_string("String", "") == " " &&
                   step.get_string("content") == kBlank) {
          marks = true;
        } else {
          refuse(step);
        }
      }
    }
    if (root_.has("pre_tokenizer")) {
      for (const JsonView& step : parts_of(root_.at("pre_tokenizer"), "pretokenizers")) {
        const std::string type = step.get_string("type");
        const bool of_blanks = type == "Split" && marks && step.at("pattern").has("String") &&
                               step.at("pattern").get_string("String") == " ";
        if (of_blanks) continue;  // there is none any more
        const std::string scheme = step.get_string("prepend_scheme", "always");
        if (type != "Metaspace" || marks || step.get_bool("split", true) ||
            step.get_string("replacement") != kBlank || scheme == "first") {
          refuse(step);
        }
        marks = true;
        prefix = scheme == "always";
      }
    }
    if (!marks) {
      root_.fail("leaves blanks as they are, which GGUF cannot say with byte_fallback");
    }
    return prefix;
  }

  void put(const JsonView& id, const std::string& text, int64_t kind) {
    const int64_t number = id.as_int();
    if (number < 0 || number >= size_) {
      id.fail(fmt::format("is {}, of token {}; expected less than the model's vocab_size {}",
                          number, quote(text), size_));
    }
    tokens_[number] = {text, kind};
  }

  void added_tokens() {
    if (!root_.has("added_tokens")) return;
    const JsonView list = root_.at("added_tokens");
    for (size_t i = 0; i < list.size(); ++i) {
      const JsonView token = list.at(i);
      for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
        if (token.get_bool(flag, false)) {
          token.at(flag).fail("is true, which GGUF cannot say; expected false");
        }
      }
      put(token.at("id"), token.get_string("content"),
          token.get_bool("special", false) ? kControl : kUserDefined);
    }
  }

  /// Returns both tokens of a merge, "a b" or ["a", "b"].
  static std::pair<std::string, std::string> merge(const JsonView& view) {
    if (!view.is_string()) return {view.at(0).as_string(), view.at(1).as_string()};
    const std::string& both = view.as_string();
    const size_t blank = both.find(' ');
    if (blank == std::string::npos) {
      view.fail(fmt::format("is {}; expected two tokens and a blank", quote(both)));
    }
    return {both.substr(0, blank), both.substr(blank + 1)};
  }

  static std::vector<JsonView> parts_of(const JsonView& view, const char* list) {
    std::vector<JsonView> out;
    if (view.get_string("type") != "Sequence") return {view};
    const JsonView parts = view.at(list);
    for (size_t i = 0; i < parts.size(); ++i) {
      out.push_back(parts.at(i));
    }
    return out;
  }

  const Pretokenizer& pretokenizer(bool ignore_merges) const {
    const JsonView steps = root_.at("pre_tokenizer");
    const std::vector<std::string> patterns = patterns_of(steps);
    const Pretokenizer* other = nullptr;
    for (const Pretokenizer& each : pretokenizers()) {
      if (!std::equal(patterns.begin(), patterns.end(), each.patterns.begin(),
                      each.patterns.end())) {
        continue;
      }
      if (each.ignore_merges == ignore_merges) return each;
      other = &each;
    }
    if (other != nullptr) {
      root_.at("model")
          .at("ignore_merges")
          .fail(fmt::format("is {}; expected {}, as for the pre-tokenizer {} of GGUF",
                            ignore_merges, other->ignore_merges, other->names[0]));
    }
    steps.fail("has no name in GGUF that is known; expected that of " + pretokenizer_names());
  }

  /// Returns the expressions by which words are cut; none where they are no list of expressions.
  static std::vector<std::string> patterns_of(const JsonView& view) {
    std::vector<std::string> out;
    const std::vector<JsonView> steps = parts_of(view, "pretokenizers");
    for (const JsonView& step : steps) {
      const std::string type = step.get_string("type");
      const bool is_last = &step == &steps.back();
      if (type == "ByteLevel" && is_last && !step.get_bool("add_prefix_space", true)) {
        if (step.get_bool("use_regex", true)) {
          out.emplace_back(kGpt2Pattern);
        }
      } else if (type == "Digits" && step.get_bool("individual_digits", false) && !is_last) {
        out.emplace_back(R"(\p{N})");
      } else if (type == "Split" && !is_last && step.get_string("behavior") == "Isolated" &&
                 !step.get_bool("invert", false) && step.at("pattern").has("Regex")) {
        const std::string pattern = step.at("pattern").get_string("Regex");
        out.push_back(pattern == kGpt2Spelled ? kGpt2Pattern : pattern);
      } else {
        return {};
      }
    }
    if (out == std::vector<std::string>{R"(\p{N})", kGpt2Pattern}) return {kDigitsPattern};
    return out;
  }

  JsonView root_;
  int64_t size_;
  std::map<int64_t, std::pair<std::string, int64_t>> tokens_;
};

/// Text of a special token: a string, or an object with `content`.
std::string special_text(const JsonView& config, const char* name) {
  if (!config.has(name)) return "";
  const JsonView token = config.at(name);
  return token.is_object() ? token.get_string("content") : token.as_string();
}

/// Returns the token that the post-processor puts before every text; empty: none.
std::string beginning_token(const JsonView& root) {
  if (!root.has("post_processor")) return "";
  const JsonView after = root.at("post_processor");
  const auto put_first = [](const JsonView& step) -> std::string {
    if (step.get_string("type") != "TemplateProcessing" || step.at("single").size() == 0 ||
        !step.at("single").at(0).has("SpecialToken")) {
      return "";
    }
    return step.at("single").at(0).at("SpecialToken").get_string("id");
  };
  if (after.get_string("type") != "Sequence") return put_first(after);
  const JsonView steps = after.at("processors");
  for (size_t i = 0; i < steps.size(); ++i) {
    if (const std::string token = put_first(steps.at(i)); !token.empty()) return token;
  }
  return "";
}

}  // namespace

void add_gguf_tokenizer(std::string_view json, std::string_view config_text,
                        const std::string& chat_template, int64_t vocabulary,
                        const std::string& where, gguf::Metadata* metadata) {
  const nlohmann::json root = parse_json(json, where);
  const nlohmann::json config =
      config_text.empty() ? nlohmann::json::object() : parse_json(config_text, where);
  const JsonView root_view(root, where), config_view(config, where);
  TokenizerExport tokenizer(root_view, vocabulary);
  tokenizer.write(*metadata);
  const auto special = [&](const char* ours, const char* theirs) {
    const std::string text = special_text(config_view, ours);
    if (text.empty()) return false;
    const auto id = tokenizer.find(text);
    if (!id) {
      config_view.at(ours).fail(fmt::format("is {}, which is no token", quote(text)));
    }
    metadata->add(std::string(kPrefix) + theirs, gguf::Value::of_u32(*id));
    return true;
  };
  const std::string first = beginning_token(root_view);
  const bool begins =
      config_view.has("add_bos_token") ? config_view.get_bool("add_bos_token") : !first.empty();
  bool has_bos = special("bos_token", "bos_token_id");
  if (begins && !has_bos) {
    // Older folders name it in another file.
    if (const auto id = tokenizer.find(first)) {
      metadata->add(std::string(kPrefix) + "bos_token_id", gguf::Value::of_u32(*id));
      has_bos = true;
    }
  }
  special("eos_token", "eos_token_id");
  special("pad_token", "padding_token_id");
  metadata->add(std::string(kPrefix) + "add_bos_token", gguf::Value::of_bool(has_bos && begins));
  if (!chat_template.empty()) {
    metadata->add("tokenizer.chat_template", gguf::Value::of_string(chat_template));
  }
}

}  // namespace hocket::data
