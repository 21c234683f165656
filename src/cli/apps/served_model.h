// SPDX-License-Identifier: Apache-2.0
// A model with its engine, tokenizer, chat template and sampling: for generate, chat, batch, serve.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/model_template.h"
#include "cli/args.h"
#include "data/model_text.h"
#include "run/config.h"
#include "serve/open.h"
#include "serve/request.h"

namespace hocket::serve {
struct ApiOptions;
}

namespace hocket::cli {

/// A model and its engine as options give them.
struct ModelOptions {
  std::string model, adapter, tokenizer, dtype = "f32";
  std::vector<std::string> set;  ///< key=value of a run
  serve::EngineOptions engine;
};

/// Sampling as options give it; the rest is as of choose_sampling.
struct SamplingOptions {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k, max_new_tokens;
  double presence_penalty = 0, frequency_penalty = 0;
  int64_t seed = 1;
  std::vector<std::string> stops;
};
/// Adds them; `max_tokens` is the default of --max-new-tokens.
void add_sampling_options(Args& args, SamplingOptions* options, int64_t max_tokens);
/// Adds the options of chat and batch but MODEL.
void add_model_options(Args& args, ModelOptions* options);

/// Files of a model, without its weights.
struct ModelFiles {
  /// `where`: the command, in errors.
  ModelFiles(const char* where, const ModelOptions& options, const std::string& chat_template);

  engine::Run run;
  data::Tokenizer tokenizer;
  std::optional<data::ChatTemplate> chat_template;
  std::string template_hash;  ///< of the option's file; "": the template is the model's own
  std::vector<int32_t> stop_tokens;
  std::vector<int32_t> beginning;  ///< tokens before a text
};

/// Returns the chat template of a run's model, as checkpoint::find_template(). A line says where it
/// is an adapter's beside the model.
checkpoint::ModelTemplate find_template(const engine::Run& run, const std::string& file = "");

struct ModelSampling {
  serve::Sampling sampling;
  int64_t max_tokens = 0;
};
/// Returns how to sample: as the options say, else as the model's files, else temperature 0.8,
/// top_p 0.95 and `max_tokens`. Warns as sampling_defaults. Throws Error for values out of range.
ModelSampling choose_sampling(const char* where, const SamplingOptions& options,
                              const std::string& model, int64_t max_tokens);
/// Returns data::read_sampling_defaults(). Warns of keys that are not supported.
data::SamplingDefaults sampling_defaults(const std::string& model);

/// Throws Error unless `value`, of the option `flag`, is one of `words`.
void require_word(const char* where, const char* flag, const std::string& value,
                  const std::vector<std::string>& words);
/// Throws Error unless --tool-call-parser is the name of a parser, auto or none.
void require_tool_parser(const char* where, const std::string& name);
/// Throws Error unless --reasoning-parser is one of its words.
void require_reasoning_parser(const char* where, const std::string& name);
/// Returns whether reasoning is taken out of texts, by --reasoning-parser.
bool splits_reasoning(const std::string& parser, const data::Tokenizer& tokenizer);
/// Returns the name of a parser of calls, "" for none: `given`, or if that is "auto", the one with
/// marks that the model's template or vocabulary has.
std::string choose_tool_parser(const std::string& given, const data::Tokenizer& tokenizer,
                               const std::optional<data::ChatTemplate>& chat_template);

/// Sets what answers of OpenAI's interface take of a model: defaults of sampling, and constraints
/// of texts to JSON and to calls of tools.
void set_model_options(const engine::Run& run, const data::Tokenizer& tokenizer,
                       const data::SamplingDefaults& defaults, serve::ApiOptions* api);

/// Returns an identity of a model's files (checkpoint::hash_model_files), its tokenizer and its
/// type.
std::string model_fingerprint(const ModelFiles& files);

}  // namespace hocket::cli
