// SPDX-License-Identifier: Apache-2.0
#include "cli/apps/prompts_show.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "data/examples/shown.h"
#include "rl/prompts.h"
#include "rl/rollout.h"

namespace hocket::cli {

using nlohmann::ordered_json;

namespace {

/// Prompts of one split, in the order that they are sampled in.
std::vector<const rl::Prompt*> prompts_of_split(const rl::PromptData& data,
                                                const std::string& split) {
  std::vector<const rl::Prompt*> prompts;
  if (split == "train") {
    for (int64_t i = 0; i < std::ssize(data.train()); ++i) {
      prompts.push_back(&data.at(i));
    }
    return prompts;
  }
  std::vector<std::string> known = {"train"};
  for (const rl::PromptSet& set : data.held_out()) {
    const std::string name = set.name.empty() ? "valid" : set.name;
    known.push_back(name);
    if (name != split) continue;
    for (const rl::Prompt& prompt : set.prompts) {
      prompts.push_back(&prompt);
    }
    return prompts;
  }
  fail("hocket data show", "--split is {}, and the prompts have no such part; expected {}",
       quote(split), join(known, ", "));
}

std::string dumped(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

data::Lengths lengths_of(const std::vector<const rl::Prompt*>& prompts) {
  std::vector<int64_t> lengths;
  for (const rl::Prompt* prompt : prompts) {
    lengths.push_back(std::ssize(prompt->ids));
  }
  return data::Lengths(std::move(lengths));
}

std::string prompts_text(const rl::PromptData& data, const std::string& split,
                         const std::vector<const rl::Prompt*>& prompts, size_t shown,
                         const ShowStyle& style) {
  const auto on = [&](const std::string& text) { return style.terminal ? printable(text) : text; };
  std::string out;
  for (size_t i = 0; i < shown; ++i) {
    const rl::Prompt& prompt = *prompts[i];
    out += fmt::format("== prompt {}, column {}: {}\n{}\n", prompt.index, on(prompt.column),
                       counted(std::ssize(prompt.ids), "token"),
                       on(data.tokenizer().decode(prompt.ids)));
    out += fmt::format("-- ground truth: {}\n",
                       prompt.ground_truth.is_null() ? "none" : on(dumped(prompt.ground_truth)));
    if (!prompt.data_source.empty()) {
      out += fmt::format("-- data_source: {}\n", on(prompt.data_source));
    }
  }
  out += out.empty() ? "" : "\n";
  for (const std::string& note : data.notes()) {
    out += on(note) + "\n";
  }
  const data::Lengths lengths = lengths_of(prompts);
  out += fmt::format("{}: {}\n", split == "train" ? "training" : "held out, " + split,
                     counted(std::ssize(prompts), "prompt"));
  out += fmt::format("tokens: min {}, median {}, p95 {}, max {}\n", lengths.sorted.front(),
                     lengths.quantile(0.5), lengths.quantile(0.95), lengths.sorted.back());
  return out;
}

std::string prompts_json(const rl::PromptData& data, const std::string& split,
                         const std::vector<const rl::Prompt*>& prompts, size_t shown) {
  ordered_json list = ordered_json::array();
  for (size_t i = 0; i < shown; ++i) {
    const rl::Prompt& prompt = *prompts[i];
    ordered_json texts = ordered_json::array();
    for (const int32_t id : prompt.ids) {
      texts.push_back(std::string(data.tokenizer().token_bytes(id)));
    }
    list.push_back({{"index", prompt.index},
                    {"column", prompt.column},
                    {"text", data.tokenizer().decode(prompt.ids)},
                    {"ids", prompt.ids},
                    {"texts", std::move(texts)},
                    {"ground_truth", prompt.ground_truth},
                    {"data_source", prompt.data_source},
                    {"extra_info", prompt.extra_info}});
  }
  const data::Lengths lengths = lengths_of(prompts);
  const ordered_json tokens = {{"min", lengths.sorted.front()},
                               {"median", lengths.quantile(0.5)},
                               {"p95", lengths.quantile(0.95)},
                               {"max", lengths.sorted.back()}};
  const ordered_json out = {{"split", split},
                            {"prompts", prompts.size()},
                            {"lengths", tokens},
                            {"notes", data.notes()},
                            {"shown", std::move(list)}};
  return dumped(out) + "\n";
}

}  // namespace

std::string show_prompts(const engine::Run& run, const std::string& split, int64_t count, bool json,
                         const ShowStyle& style) {
  const rl::PromptData data(run, rl::most_prompt_tokens(run));
  const std::vector<const rl::Prompt*> prompts = prompts_of_split(data, split);
  const size_t shown = std::min(static_cast<size_t>(count), prompts.size());
  return json ? prompts_json(data, split, prompts, shown)
              : prompts_text(data, split, prompts, shown, style);
}

}  // namespace hocket::cli
