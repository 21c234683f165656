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
#include "data/tokenizer/tokenizer_config.h"
#include "data/tokenizer/tokenizer_impl.h"

#include <nlohmann/json.hpp>

namespace hocket::data {
namespace {

// The end of text that a tokenizer's folder names: a string or an object with `content`.
std::string configured_eos(const std::string& folder) {
  const nlohmann::json json = read_tokenizer_config(folder);
  const JsonView config(json, join_path(folder, "tokenizer_config.json"));
  if (!config.has("eos_token")) return "";
  const JsonView eos = config.at("eos_token");
  return eos.is_object() ? eos.get_string("content") : eos.as_string();
}

}  // namespace

Tokenizer::Tokenizer(TokenizerSpec spec) : impl_(std::make_unique<Impl>(std::move(spec))) {}

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
  return parse(text, file, configured_eos(parent_path(file)));
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

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  Encoder(*this).encode(text, &ids, options);
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  bool first = true;
  for (const int32_t id : ids) {
    const std::string_view bytes = token_bytes(id);
    if (skip_special && impl_->special[id]) continue;
    if (first && !spec().byte_level) {
      out += decode_token(spec(), impl_->surface(id), true);
    } else {
      out += bytes;
    }
    first = false;
  }
  return decode_whole(spec(), std::move(out));
}

int32_t Tokenizer::vocab_size() const { return impl_->spec.tokens.size(); }

int32_t Tokenizer::eos_id() const { return impl_->spec.eos; }

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    fail("tokenizer", "no token has id {}; expected 0 to {}", id, vocab_size() - 1);
  }
  return impl_->decoded[id];
}

std::vector<int32_t> Tokenizer::token_lengths() const {
  std::vector<int32_t> lengths;
  lengths.reserve(impl_->decoded.size());
  for (const std::string& text : impl_->decoded) {
    lengths.push_back(static_cast<int32_t>(text.size()));
  }
  for (const int32_t id : {eos_id(), spec().unk}) {
    if (id >= 0) {
      lengths[id] = 0;
    }
  }
  return lengths;
}

int32_t Tokenizer::find_token(std::string_view text) const {
  const int32_t id = impl_->id_of(text);
  if (id >= 0) return id;
  for (const AddedToken& added : spec().added) {
    if (added.text == text) return added.id;
  }
  return -1;
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
