// SPDX-License-Identifier: Apache-2.0
#include "rl/prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/ordered_json.h"
#include "base/text.h"
#include "checkpoint/model_template.h"
#include "data/examples/messages.h"
#include "data/examples/source.h"
#include "data/loader.h"
#include "data/model_text.h"
#include "gguf/file.h"

namespace hocket::rl {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kVerlTruth = "reward_model.ground_truth";
/// Columns that may hold the ground truth, the first that is there; one that `columns` names goes
/// before all.
constexpr std::array<const char*, 6> kTruths = {"ground_truth", kVerlTruth, "answer",
                                                "solution",     "label",    "target"};

/// Returns the name that the data has for a column.
std::string name_in_data(const data::SourceOptions& source, const std::string& name) {
  const auto renamed = source.columns.find(name);
  return renamed == source.columns.end() ? name : renamed->second;
}

/// Returns the value under a name of the data, which may be a path ("extra_info.answer"); null:
/// there is none.
const Json* value_at(const Json& object, const std::string& name) {
  if (!object.is_object()) return nullptr;
  if (const auto found = object.find(name); found != object.end()) return &*found;
  const size_t dot = name.find('.');
  const auto outer = dot == name.npos ? object.end() : object.find(name.substr(0, dot));
  return outer == object.end() ? nullptr : value_at(*outer, name.substr(dot + 1));
}

/// Returns a column by its standard name, or null.
const Json* column(const data::SourceOptions& source, const Json& object, const std::string& name) {
  const Json* found = value_at(object, name_in_data(source, name));
  return found == nullptr || found->is_null() ? nullptr : found;
}

/// A ground truth, and the columns that it is of and that say something else.
struct Truth {
  Json value;
  std::string column, other;  ///< other: "" also where `columns` names the first
};

/// Returns a text and a number with the same digits as equals.
bool is_same(const Json& one, const Json& other) {
  const auto text = [](const Json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  return text(one) == text(other);
}

/// Returns a column that may hold the ground truth, or null.
const Json* truth_in(const data::SourceOptions& source, const Json& object,
                     const std::string& name) {
  if (name != kVerlTruth) return column(source, object, name);
  const Json* model = column(source, object, "reward_model");
  const Json* value = model == nullptr ? nullptr : value_at(*model, "ground_truth");
  return value == nullptr || value->is_null() ? nullptr : value;
}

/// The ground truth of an object: of the column that `columns` names, or the first of kTruths.
Truth truth_of(const data::SourceOptions& source, const Json& object) {
  Truth truth;
  for (const char* name : kTruths) {
    const auto named = source.columns.find(name);
    if (named == source.columns.end()) continue;
    const Json* value = value_at(object, named->second);
    if (value == nullptr) {
      fail("prompt", "it has no column {} (columns: {{{}: {}}})", named->second, name,
           named->second);
    }
    if (!value->is_null()) return {.value = *value, .column = named->second, .other = ""};
  }
  for (const char* name : kTruths) {
    const Json* value = truth_in(source, object, name);
    if (value == nullptr) continue;
    if (truth.column.empty()) {
      truth = {.value = *value, .column = name, .other = ""};
      continue;
    }
    const Json* part = value_at(truth.value, name);  // countdown's column target, say
    if (truth.other.empty() && !is_same(part == nullptr ? truth.value : *part, *value)) {
      truth.other = name;
    }
  }
  return truth;
}

/// Refuses keys of a source that prompts are not read by.
void expect_columns_of_prompts(const data::SourceOptions& source) {
  std::vector<std::string> names = {"prompt",     "messages", "reward_model",        "data_source",
                                    "extra_info", "tools",    "chat_template_kwargs"};
  std::remove_copy(kTruths.begin(), kTruths.end(), std::back_inserter(names), kVerlTruth);
  for (const auto& [column, name] : source.columns) {
    if (std::find(names.begin(), names.end(), column) == names.end()) {
      fail(source.key, "unknown name {} in columns; expected one of {}", quote(column),
           join(names, ", "));
    }
  }
  if (source.format != "auto") {
    fail(source.key, "{} has format {}; objective rl reads prompts by columns; expected no format",
         source.path, source.format);
  }
}

/// Returns whether prompts are held out of a source, or all of them are.
bool is_held_out(const data::SourceOptions& source) { return source.split == "valid"; }

}  // namespace

PromptData::PromptData(const engine::Run& run, int64_t longest)
    : run_(run), most_(longest), model_(train::text_files_of(run)) {
  const engine::DataSection& section = run.config.data;
  if (section.sources.empty()) {
    fail(run.name,
         "objective is rl, and data.sources is empty; expected files of prompts, such as "
         "data.sources: [{{path: prompts.jsonl}}]");
  }
  tokenizer_ = std::make_unique<data::Tokenizer>(data::load_model_tokenizer(
      run.name, model_, section.tokenizer, run.model.vocab_size, "data.tokenizer"));
  template_ = checkpoint::find_template(model_, "", section.chat_template, "data.chat_template")
                  .chat_template;
  stop_tokens_ = data::stop_tokens(model_, run.model, *tokenizer_);
  beginning_ = data::beginning_of_text(model_, *tokenizer_);
  for (const data::SourceOptions& source : section.sources) {
    name_ += (name_.empty() ? "" : ", ") + source.path;
  }
  train_ = read("train", section.sources, "train");
  hold_out();
  for (const engine::EvaluationSection& set : section.evaluation) {
    held_out_.push_back(read(set.name, set.held_out(), "valid"));
  }
  Hasher hasher;
  for (const Prompt& prompt : train_.prompts) {
    longest_ = std::max(longest_, static_cast<int64_t>(prompt.ids.size()));
    // All columns: commands as rewards see them.
    hasher.add(prompt.text).add(prompt.ground_truth.dump()).add(prompt.columns.dump());
  }
  fingerprint_ = hasher.finish().hex();
  for (const PromptSet& set : held_out_) {
    for (const Prompt& prompt : set.prompts) {
      longest_ = std::max(longest_, static_cast<int64_t>(prompt.ids.size()));
    }
  }
  const auto refuse_empty = [&](const PromptSet& set, const std::string& what) {
    if (!set.prompts.empty()) return;
    fail(run.name, "{}{}", what,
         set.too_long > 0
             ? fmt::format(": {} are longer than {} tokens; try a larger train.seq_len{}",
                           set.too_long, most_,
                           run.config.rl.max_prompt_tokens > 0 ? " or rl.max_prompt_tokens"
                                                               : ", or less rl.max_new_tokens")
             : "");
  };
  refuse_empty(train_, name_ + " has no prompt to train on");
  for (const PromptSet& set : held_out_) {
    refuse_empty(set, set.name.empty() ? "the held-out part of data.sources has no prompt"
                                       : "set " + set.name + " of data.evaluation has no prompt");
  }
}

PromptSet PromptData::read(const std::string& name, const std::vector<data::SourceOptions>& sources,
                           const std::string& split) {
  PromptSet set;
  set.name = name;
  std::vector<data::SourceOptions> held_out_sources;
  for (const data::SourceOptions& source : sources) {
    if (source.weight && *source.weight != 1) {
      fail(run_.name, "{}: {} has weight {}; objective rl reads every prompt once an epoch",
           source.key, source.path, *source.weight);
    }
    expect_columns_of_prompts(source);
    if (split == "train" && is_held_out(source)) {
      held_out_sources.push_back(source);
      continue;
    }
    const data::ReadReport report =
        data::read_objects(source, [&](Json&& object, const std::string&) {
          Prompt prompt = prompt_of(source, std::move(object));
          if (std::ssize(prompt.ids) > most_) {
            ++set.too_long;
            return true;
          }
          prompt.index = std::ssize(set.prompts);
          set.prompts.push_back(std::move(prompt));
          return true;
        });
    if (report.unreadable > 0) {
      notes_.push_back(fmt::format("{} of {} could not be read, the first: {}",
                                   counted(report.unreadable, "line"), source.path,
                                   report.first_unreadable.front()));
    }
  }
  if (!held_out_sources.empty()) {
    held_out_.push_back(read("", held_out_sources, "valid"));
  }
  if (set.too_long > 0) {
    notes_.push_back(fmt::format("{} left out of {}: longer than {} tokens",
                                 counted(set.too_long, "prompt"),
                                 name.empty() ? "the held-out part" : name, most_));
  }
  return set;
}

Prompt PromptData::prompt_of(const data::SourceOptions& source, Json&& columns) {
  Prompt prompt;
  prompt.column = name_in_data(source, "prompt");
  const Json* text = column(source, columns, "prompt");
  if (text == nullptr) {
    prompt.column = name_in_data(source, "messages");
    text = column(source, columns, "messages");
  }
  if (text == nullptr) {
    const auto named = source.columns.find("prompt");
    fail("prompt", "it has no column {} (columns: {{prompt: {}}})",
         named == source.columns.end() ? "prompt" : named->second,
         named == source.columns.end() ? "NAME" : named->second);
  }
  if (text->is_array()) {
    set_chat(source, columns, *text, &prompt);
  } else {
    set_text(*text, &prompt);
  }
  if (prompt.ids.empty()) {
    fail("prompt", "it has no token; expected some text, or a tokenizer with a token that begins");
  }
  const Truth truth = truth_of(source, columns);
  prompt.ground_truth = truth.value;
  if (!truth.other.empty()) {
    ++disagreements_[{truth.column, truth.other}];
  }
  without_truth_ += prompt.ground_truth.is_null() ? 1 : 0;
  if (const Json* name = column(source, columns, "data_source"); name && name->is_string()) {
    prompt.data_source = name->get<std::string>();
  }
  if (const Json* extra = column(source, columns, "extra_info")) {
    prompt.extra_info = *extra;
  }
  prompt.columns = std::move(columns);
  return prompt;
}

/// Reads a string as it is, behind the tokens that begin a text.
void PromptData::set_text(const Json& text, Prompt* prompt) {
  if (!text.is_string()) {
    fail("prompt", "it is {}; expected a string or a list of messages", data::type_text(text));
  }
  ++texts_;
  data::EncodeOptions encode_options;
  encode_options.split_special_tokens = run_.config.data.split_special_tokens;
  prompt->text = text.get<std::string>();
  prompt->ids = data::document_ids(run_.name, beginning_, *tokenizer_, prompt->text,
                                   run_.model.vocab_size, encode_options);
}

/// Reads messages through the model's chat template, with the tools and variables beside them, up
/// to where their answer begins.
void PromptData::set_chat(const data::SourceOptions& source, const Json& columns, const Json& list,
                          Prompt* prompt) {
  if (!template_) {
    fail("prompt", "it is a list of messages, and {} has no chat template; try data.chat_template",
         model_);
  }
  ++chats_;
  const Json messages = data::read_messages(list, data::MessageTags::chat(), "prompt");
  if (messages.back().at("role") == "assistant") {
    fail("prompt", "its last message is of role assistant; expected one that an answer follows");
  }
  data::ChatOptions chat;
  chat.add_generation_prompt = true;
  Json tools;
  if (const Json* given = column(source, columns, "tools")) {
    tools = data::read_tools(*given, /*wraps=*/false);  // as TRL
    chat.tools = tools.is_null() ? nullptr : &tools;
  }
  if (const Json* given = column(source, columns, "chat_template_kwargs")) {
    if (!given->is_object()) {
      fail("prompt", "its chat_template_kwargs is {}; expected an object", data::type_text(*given));
    }
    chat.variables = given;
  }
  const std::string& named = run_.config.data.chat_template;
  const std::string from = named.empty() ? model_ : "data.chat_template " + named;
  try {
    prompt->text = template_->render(messages, chat).text;
  } catch (const Error& error) {
    fail("prompt", "{} (chat template of {})", error.text(), from);
  }
  if (prompt->text.empty()) fail("prompt", "the chat template of {} makes no text of it", from);
  prompt->ids = tokenizer_->encode(prompt->text, data::EncodeOptions());
  data::require_ids(run_.name, prompt->ids, *tokenizer_, run_.model.vocab_size);
}

/// Moves data.valid_fraction of the prompts to a held-out set of their own.
void PromptData::hold_out() {
  const double share = run_.config.data.valid_fraction;
  const bool own =
      std::any_of(run_.config.data.sources.begin(), run_.config.data.sources.end(), is_held_out);
  if (share == 0 || own || !run_.config.data.evaluation.empty()) return;
  std::vector<Hash128> contents;
  for (const Prompt& prompt : train_.prompts) {
    Hasher hasher;
    hasher.add(prompt.text).add(prompt.ground_truth.dump());
    contents.push_back(hasher.finish());
  }
  if (contents.size() < 2) return;
  const std::vector<bool> held =
      data::hold_out(contents, share, static_cast<uint64_t>(run_.config.train.seed));
  PromptSet set;
  std::vector<Prompt> rest;
  for (size_t i = 0; i < held.size(); ++i) {
    std::vector<Prompt>& to = held[i] ? set.prompts : rest;
    train_.prompts[i].index = std::ssize(to);
    to.push_back(std::move(train_.prompts[i]));
  }
  train_.prompts = std::move(rest);
  held_out_.insert(held_out_.begin(), std::move(set));
}

const Prompt& PromptData::at(int64_t number) const {
  const int64_t size = std::ssize(train_.prompts);
  const auto epoch = static_cast<uint64_t>(number / size);
  const data::Permutation order(
      static_cast<uint64_t>(size),
      static_cast<uint64_t>(run_.config.train.seed) * 0x9E3779B97F4A7C15ULL + epoch);
  return train_.prompts[order(static_cast<uint64_t>(number % size))];
}

std::vector<std::string> PromptData::notes() const {
  std::vector<std::string> notes = notes_;
  if (template_ && texts_ > 0) {
    notes.push_back(
        fmt::format("{} a plain string, which the chat template of the model is not applied to; "
                    "expected a list "
                    "of messages for a chat",
                    texts_ == 1 ? "1 prompt is" : fmt::format("{} prompts are", texts_)));
  }
  for (const auto& [names, prompts] : disagreements_) {
    const auto& [used, other] = names;
    notes.push_back(
        fmt::format("the ground truth of {} is {}, and column {} has another value; to choose, try "
                    "columns: {{ground_truth: {}}} in data.sources",
                    counted(prompts, "prompt"), used, other, other));
  }
  const std::vector<engine::RewardSection>& rewards = run_.config.rl.rewards;
  const bool needs_truth = std::any_of(rewards.begin(), rewards.end(), [](const auto& reward) {
    return reward.type != "regex" && reward.type != "length" && reward.type != "json_schema";
  });
  if (without_truth_ > 0 && needs_truth) {
    notes.push_back(fmt::format("{} without a ground truth ({})", counted(without_truth_, "prompt"),
                                fmt::join(kTruths, ", ")));
  }
  return notes;
}

}  // namespace hocket::rl
