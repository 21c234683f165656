// SPDX-License-Identifier: Apache-2.0
#include "cli/apps/served_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/fingerprint.h"
#include "cli/inputs.h"
#include "comm/launch.h"
#include "serve/grammar/json_grammar.h"
#include "serve/openai/api.h"
#include "serve/openai/tool_parser.h"

namespace hocket::cli {

namespace {

void require_range(const char* where, const char* option, double value, double least, double most) {
  if (!(value >= least && value <= most)) {
    fail(where, "{} is {}; expected {} to {}", option, value, least, most);
  }
}

/// Text that the template makes of a message and a tool; "" if it refuses them.
std::string rendered_tool(const data::ChatTemplate& chat_template) {
  const auto messages = nlohmann::ordered_json::parse(R"([{"role": "user", "content": "Hi"}])");
  const auto tools = nlohmann::ordered_json::parse(
      R"([{"type": "function", "function": {"name": "f", "description": "d",
          "parameters": {"type": "object", "properties": {}}}}])");
  data::ChatOptions chat_options;
  chat_options.tools = &tools;
  chat_options.add_generation_prompt = true;
  try {
    return chat_template.render(messages, chat_options).text;
  } catch (const Error&) {
    return "";
  }
}

/// Form of the calls that a tool parser reads.
serve::ToolCallForm call_form(const std::string& parser) {
  if (parser == "mistral") return serve::ToolCallForm::mistral;
  return parser == "hermes" ? serve::ToolCallForm::hermes : serve::ToolCallForm::llama3_json;
}

}  // namespace

void add_sampling_options(Args& args, SamplingOptions* options, int64_t max_tokens) {
  args.option("--max-new-tokens", "N", &options->max_new_tokens,
              "most tokens of a text; default: generation_config.json's, else " +
                  std::to_string(max_tokens));
  args.option("--temperature", "T", &options->temperature,
              "sampling temperature; 0: always the most likely token; default, as of the next "
              "four: generation_config.json's or the GGUF file's, else 0.8");
  args.option("--top-k", "K", &options->top_k,
              "sample only from the K most likely tokens; 0, default: all");
  args.option("--top-p", "P", &options->top_p,
              "sample only from the most likely tokens that make up this share; default: 0.95");
  args.option("--min-p", "P", &options->min_p,
              "sample no token below this share of the most likely one's probability");
  args.option("--repetition-penalty", "F", &options->repetition_penalty,
              "divisor of the positive logits of tokens of prompt and text; 1, default: none");
  args.option("--presence-penalty", "A", &options->presence_penalty,
              "amount that is subtracted from the logits of tokens of the text");
  args.option(
      "--frequency-penalty", "A", &options->frequency_penalty,
      "amount that is subtracted from a token's logit for each time that it occurs in the text");
  args.option("--seed", "S", &options->seed, "seed of the random choices", 0, INT64_MAX);
  args.option("--stop", "TEXT", &options->stops,
              "stop sequence; not included in the output; repeatable");
}

void add_model_options(Args& args, ModelOptions* options) {
  add_adapter(args, &options->adapter);
  add_tokenizer(args, &options->tokenizer);
  add_dtype(args, &options->dtype);
  args.option(
      "--max-model-len", "N", &options->engine.max_model_len,
      "most tokens of prompt and text together; 0: the model's most, as far as the KV cache "
      "holds it",
      0, 1 << 30);
  add_set(args, &options->set);
}

ModelFiles::ModelFiles(const char* where, const ModelOptions& options,
                       const std::string& template_file)
    : run(model_run(options.model, options.dtype, options.set, options.adapter)),
      tokenizer(data::load_model_tokenizer(where, run.config.model.path, options.tokenizer,
                                           run.model.vocab_size)),
      chat_template(find_template(run, template_file).chat_template),
      template_hash(template_file.empty() ? "" : hash_file(template_file).hex()),
      stop_tokens(data::stop_tokens(run.config.model.path, run.model, tokenizer)),
      beginning(data::beginning_of_text(run.config.model.path, tokenizer)) {
  warn_if_long(run.model, options.engine.max_model_len, "--max-model-len");
}

checkpoint::ModelTemplate find_template(const engine::Run& run, const std::string& file) {
  checkpoint::ModelTemplate found =
      checkpoint::find_template(run.config.model.path, run.adapter, file);
  const bool is_of_adapter = found.source == run.adapter && found.source != run.config.model.path;
  if (is_of_adapter && comm::launch_info().rank == 0) {
    print_line("the chat template is that of the adapter " + run.adapter);
  }
  return found;
}

data::SamplingDefaults sampling_defaults(const std::string& model) {
  data::SamplingDefaults defaults = data::read_sampling_defaults(model);
  for (const std::string& key : defaults.ignored) {
    log_warning("{}: {} is not supported, and has no effect here", defaults.source, key);
  }
  return defaults;
}

ModelSampling choose_sampling(const char* where, const SamplingOptions& options,
                              const std::string& model, int64_t max_tokens) {
  const data::SamplingDefaults defaults = sampling_defaults(model);
  ModelSampling out;
  serve::Sampling& sampling = out.sampling;
  sampling.temperature = options.temperature.value_or(defaults.temperature.value_or(0.8));
  sampling.top_p = options.top_p.value_or(defaults.top_p.value_or(0.95));
  sampling.top_k = options.top_k.value_or(defaults.top_k.value_or(0));
  sampling.min_p = options.min_p.value_or(defaults.min_p.value_or(0));
  sampling.repetition_penalty =
      options.repetition_penalty.value_or(defaults.repetition_penalty.value_or(1));
  sampling.presence_penalty = options.presence_penalty;
  sampling.frequency_penalty = options.frequency_penalty;
  sampling.seed = static_cast<uint64_t>(options.seed);
  out.max_tokens = options.max_new_tokens.value_or(defaults.max_new_tokens.value_or(max_tokens));
  require_range(where, "--max-new-tokens", static_cast<double>(out.max_tokens), 1, 1e7);
  require_range(where, "--temperature", sampling.temperature, 0, 100);
  require_range(where, "--top-k", static_cast<double>(sampling.top_k), 0, 1e9);
  require_range(where, "--top-p", sampling.top_p, 0, 1);
  require_range(where, "--min-p", sampling.min_p, 0, 1);
  require_range(where, "--repetition-penalty", sampling.repetition_penalty, 1e-3, 1e3);
  for (const std::string& stop : options.stops) {
    if (stop.empty()) fail(where, "--stop is empty; expected some text");
  }
  return out;
}

void require_word(const char* where, const char* flag, const std::string& value,
                  const std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), value) != words.end()) return;
  fail(where, "{} is {}; expected {}", flag, quote(value), join(words, ", "));
}

void require_tool_parser(const char* where, const std::string& name) {
  std::vector<std::string> names = serve::tool_parser_names();
  names.insert(names.end(), {"auto", "none"});
  require_word(where, "--tool-call-parser", name, names);
}

void require_reasoning_parser(const char* where, const std::string& name) {
  require_word(where, "--reasoning-parser", name,
               {"auto", "none", "think", "deepseek_r1", "qwen3"});
}

bool splits_reasoning(const std::string& parser, const data::Tokenizer& tokenizer) {
  return parser == "auto" ? tokenizer.find_token("<think>") >= 0 : parser != "none";
}

std::string choose_tool_parser(const std::string& given, const data::Tokenizer& tokenizer,
                               const std::optional<data::ChatTemplate>& chat_template) {
  if (given != "auto") return given == "none" ? "" : given;
  if (!chat_template) return "";
  const std::string text = rendered_tool(*chat_template);
  for (const auto& [mark, parser] :
       {std::pair("<tool_call>", "hermes"), std::pair("[TOOL_CALLS]", "mistral"),
        std::pair("<|python_tag|>", "llama3_json")}) {
    if (text.find(mark) != text.npos || tokenizer.find_token(mark) >= 0) return parser;
  }
  return "";
}

void set_model_options(const engine::Run& run, const data::Tokenizer& tokenizer,
                       const data::SamplingDefaults& defaults, serve::ApiOptions* api) {
  serve::CallLimits& limits = api->limits;
  limits.temperature = defaults.temperature;
  limits.top_p = defaults.top_p;
  limits.min_p = defaults.min_p;
  limits.repetition_penalty = defaults.repetition_penalty;
  limits.top_k = defaults.top_k;
  limits.max_tokens = defaults.max_new_tokens;
  limits.vocab_size = run.model.vocab_size;
  const auto grammars =
      std::make_shared<serve::JsonGrammarCache>(serve::GrammarVocabulary::of(tokenizer));
  api->constraint = [grammars](const nlohmann::ordered_json* schema) {
    return grammars->of_schema(schema)->constraint();
  };
  api->tool_constraint = [grammars](const nlohmann::ordered_json& tools, const std::string& parser,
                                    const std::string& function, int64_t most) {
    return grammars
        ->of_tools(tools, {.form = call_form(parser), .name = function, .max_calls = most})
        ->constraint();
  };
}

std::string model_fingerprint(const ModelFiles& files) {
  Hasher hasher;
  checkpoint::hash_model_files(files.run.config.model.path, &hasher);
  if (!files.run.adapter.empty()) {
    checkpoint::hash_model_files(files.run.adapter, &hasher);
  }
  hasher.add(files.tokenizer.hash().hex()).add(files.run.config.model.dtype);
  return hasher.finish().hex();
}

}  // namespace hocket::cli
