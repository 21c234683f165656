// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/text.h"
#include "data/tokenizer/gguf.h"
#include "data/tokenizer/tokenizer_impl.h"

#include <nlohmann/json.hpp>

namespace hocket::data {
namespace {

// Computes two hashes: of everything that determines a text's ids, and of that with the end of
// text.
void hash_spec(const TokenizerSpec& spec, Hash128* content, Hash128* all) {
  Hasher hasher;
  const auto text = [&](std::string_view s) { hasher.add(uint64_t{s.size()}).add(s); };
  text("byte-level BPE 1");
  text(spec.pattern);
  hasher.add(uint64_t{spec.add_prefix_space} | uint64_t{spec.ignore_merges} << 1 |
             uint64_t{spec.nfc} << 2);
  hasher.add(uint64_t{spec.tokens.size()});
  for (const std::string& token : spec.tokens) {
    text(token);
  }
  hasher.add(uint64_t{spec.merges.size()});
  for (const auto& [left, right] : spec.merges) {
    hasher.add(pair_key(left, right));
  }
  for (const AddedToken& added_token : spec.added) {
    hasher.add(added_token.id);
    text(added_token.text);
    hasher.add(uint64_t{added_token.single_word} | uint64_t{added_token.lstrip} << 1 |
               uint64_t{added_token.rstrip} << 2 | uint64_t{added_token.normalized} << 3);
  }
  *content = hasher.finish();
  hasher.add(spec.eos);
  *all = hasher.finish();
}

// The text of a special token in tokenizer_config.json: a string or an object with `content`.
std::string configured_eos(const std::string& path) {
  if (!file_exists(path)) return "";
  const nlohmann::json json = read_json(path);
  const JsonView config(json, path);
  if (!config.has("eos_token")) return "";
  const JsonView eos = config.at("eos_token");
  return eos.is_object() ? eos.get_string("content") : eos.as_string();
}

}  // namespace

Tokenizer::Tokenizer(TokenizerSpec spec) : impl_(std::make_unique<Impl>(std::move(spec))) {
  Impl& impl = *impl_;
  const int64_t count = std::ssize(impl.spec.tokens);
  if (count == 0) fail("tokenizer", "empty vocabulary");
  if (count > kMaxVocab) fail("tokenizer", "{} tokens; expected at most {}", count, kMaxVocab);
  impl.byte_ids.fill(-1);
  impl.by_bytes.reserve(impl.spec.tokens.size());
  for (int32_t id = 0; id < count; ++id) {
    const std::string& bytes = impl.spec.tokens[id];
    if (bytes.empty()) continue;
    const auto [at, is_new] = impl.by_bytes.emplace(bytes, id);
    if (!is_new) fail("tokenizer", "token {} has two ids, {} and {}", quote(bytes), at->second, id);
    if (bytes.size() == 1) {
      impl.byte_ids[static_cast<uint8_t>(bytes[0])] = id;
    }
  }
  impl.merges = FlatMap<Merge>(impl.spec.merges.size());
  std::string both;
  for (size_t rank = 0; rank < impl.spec.merges.size(); ++rank) {
    const auto [left, right] = impl.spec.merges[rank];
    for (const int32_t id : {left, right}) {
      if (id < 0 || id >= count) {
        fail("tokenizer", "merge {} names id {}; expected 0 to {}", rank, id, count - 1);
      }
    }
    both = impl.spec.tokens[left];
    both += impl.spec.tokens[right];
    const int32_t result = find_token(both);
    if (result < 0) {
      fail("tokenizer", "merge {} makes {}, which is not in the vocabulary", rank, quote(both));
    }
    // A pair that is there already gets the later rank.
    const Merge merge{static_cast<uint32_t>(rank), result};
    *impl.merges.insert(pair_key(left, right), merge).first = merge;
  }
  impl.special.assign(impl.spec.tokens.size(), false);
  for (const AddedToken& added : impl.spec.added) {
    if (added.id < 0 || added.id >= count || added.text.empty()) {
      fail("tokenizer", "added token {} has id {}; expected 0 to {} and a text", quote(added.text),
           added.id, count - 1);
    }
    if (added.special) {
      impl.special[added.id] = true;
    }
    impl.added_by[static_cast<uint8_t>(added.text[0])].push_back(&added);
  }
  for (auto& list : impl.added_by) {
    std::stable_sort(list.begin(), list.end(), [](const AddedToken* a, const AddedToken* b) {
      return a->text.size() > b->text.size();
    });
  }
  if (impl.spec.eos < -1 || impl.spec.eos >= count) {
    fail("tokenizer", "end of text is id {}; expected 0 to {}", impl.spec.eos, count - 1);
  }
  hash_spec(impl.spec, &impl.content_hash, &impl.hash);
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::string& path) {
  if (gguf::is_gguf(path)) {
    const GgufTokenizer in_file = read_gguf_tokenizer(gguf::File(path).metadata());
    return parse(in_file.json, path, in_file.eos_text);
  }
  const std::string file = is_directory(path) ? join_path(path, "tokenizer.json") : path;
  const std::string text = read_file(file, JsonLimits().max_bytes);
  return parse(text, file, configured_eos(join_path(parent_path(file), "tokenizer_config.json")));
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& where,
                           const std::string& eos_text) {
  Tokenizer out(spec_from_json(json, where, eos_text));
  out.impl_->source = json;
  return out;
}

std::string Tokenizer::to_json() const {
  return impl_->source.empty() ? spec_to_json(impl_->spec) : impl_->source;
}

void Tokenizer::save(const std::string& path) const { write_file_atomic(path, to_json()); }

void Tokenizer::save_folder(const std::string& folder) const {
  make_dirs(folder);
  save(join_path(folder, "tokenizer.json"));
  JsonWriter config({.indent = 2});
  config.object()
      .member("tokenizer_class", "PreTrainedTokenizerFast")
      .member("clean_up_tokenization_spaces", false);
  if (eos_id() >= 0) {
    config.member("eos_token", token_bytes(eos_id()));
  }
  write_file_atomic(join_path(folder, "tokenizer_config.json"), config.end().take() + "\n");
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  Encoder(*this).encode(text, &ids);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  for (const int32_t id : ids) {
    const std::string_view bytes = token_bytes(id);
    if (!(skip_special && impl_->special[id])) {
      out += bytes;
    }
  }
  return out;
}

int32_t Tokenizer::vocab_size() const { return impl_->spec.tokens.size(); }

int32_t Tokenizer::eos_id() const { return impl_->spec.eos; }

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    fail("tokenizer", "no token has id {}; expected 0 to {}", id, vocab_size() - 1);
  }
  return impl_->spec.tokens[id];
}

std::vector<int32_t> Tokenizer::token_lengths() const {
  std::vector<int32_t> lengths;
  lengths.reserve(impl_->spec.tokens.size());
  for (const std::string& text : impl_->spec.tokens) {
    lengths.push_back(text.size());
  }
  if (eos_id() >= 0) {
    lengths[eos_id()] = 0;
  }
  return lengths;
}

int32_t Tokenizer::find_token(std::string_view bytes) const {
  const auto found = impl_->by_bytes.find(bytes);
  return found == impl_->by_bytes.end() ? -1 : found->second;
}

const TokenizerSpec& Tokenizer::spec() const { return impl_->spec; }

Hash128 Tokenizer::hash() const { return impl_->hash; }
Hash128 Tokenizer::content_hash() const { return impl_->content_hash; }

void require_tokenizer_of(const std::string& model_folder, const Tokenizer& tokenizer,
                          const std::string& where, const std::string& advice) {
  // Vocabulary and rules must be the same; a different end of text is only warned of, since models
  // name their own, and a model without a tokenizer takes any.
  const bool is_gguf = gguf::is_gguf(model_folder);
  const std::string file = is_gguf ? model_folder : join_path(model_folder, "tokenizer.json");
  if (!file_exists(file)) return;
  const auto named = [](const Tokenizer& tokenizer) {
    return fmt::format("{} tokens, hash {}", tokenizer.vocab_size(),
                       tokenizer.content_hash().hex().substr(0, 8));
  };
  std::string other;
  try {
    const Tokenizer models = Tokenizer::load(file);
    if (models.content_hash() == tokenizer.content_hash()) {
      if (models.eos_id() != tokenizer.eos_id()) {
        log_warning("{}: the end of text is token {}; of {} it is {}", where, tokenizer.eos_id(),
                    file, models.eos_id());
      }
      return;
    }
    other = named(models);
  } catch (const Error& error) {
    other = fmt::format("which cannot be read: {}", error.what());
  }
  fail(where,
       "the tokenizer ({}) is not that of the model, {} ({}); expected the same: ids mean "
       "other text; {}",
       named(tokenizer), file, other, advice);
}

}  // namespace hocket::data
