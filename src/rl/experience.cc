// SPDX-License-Identifier: Apache-2.0
#include "rl/experience.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "rl/divergence.h"

namespace hocket::rl {

namespace {
using Json = nlohmann::ordered_json;
}  // namespace

const char* to_string(SampleStatus status) {
  static constexpr const char* kNames[] = {"pending", "completed", "truncated", "aborted",
                                           "failed"};
  return kNames[static_cast<size_t>(status)];
}

void shape_reward(const engine::RlSection& section, Sample* sample) {
  sample->shaped_reward =
      sample->reward +
      length_penalty(section.overlong, std::ssize(sample->tokens), section.max_new_tokens);
}

std::vector<LossInputs> loss_inputs_of(const engine::RlSection& section,
                                       std::span<const Sample> samples) {
  std::vector<LossInputs> loss_inputs;
  for (const Sample& sample : samples) {
    LossInputs inputs;
    inputs.group = sample.group;
    inputs.reward = sample.shaped_reward;
    inputs.scored = !sample.left_out;
    inputs.counts =
        !sample.left_out && !(section.overlong.filter && sample.status == SampleStatus::truncated);
    inputs.old = sample.logprobs;
    inputs.rollout = sample.sampled_logprobs;
    loss_inputs.push_back(std::move(inputs));
  }
  return loss_inputs;
}

bool is_even(std::span<const Sample> group) {
  const Sample* first = nullptr;
  for (const Sample& sample : group) {
    if (sample.left_out) continue;
    if (first != nullptr && sample.reward != first->reward) return false;
    first = &sample;
  }
  return true;
}

const std::string& name_of(const engine::RewardSection& reward) {
  return reward.name.empty() ? reward.type : reward.name;
}

const std::string& deciding_reward(const engine::RlSection& section) {
  return name_of(section.rewards.front());
}

bool is_right(const Sample& sample, const std::string& deciding, double right_from) {
  const auto part = sample.rewards.find(deciding);
  return part != sample.rewards.end() && !part->second.failed &&
         !part->second.is_not_applicable() && part->second.score >= right_from;
}

bool is_right_in_all(const Sample& sample, const engine::RlSection& section) {
  bool any = false;
  for (const engine::RewardSection& reward : section.rewards) {
    const auto part = sample.rewards.find(name_of(reward));
    if (part == sample.rewards.end() || part->second.failed) return false;
    if (reward.weight == 0 || part->second.is_not_applicable()) continue;
    const double score = part->second.score;
    if (reward.weight > 0 ? score < section.right_from : score > 0) return false;
    any = any || reward.weight > 0;
  }
  return any;
}

namespace {

Json part_json(const RewardPart& part) {
  Json json = {{"score", part.score}};
  if (part.failed) {
    json["failed"] = true;
    json["error"] = part.error;
  }
  if (part.tries != 1) {
    json["tries"] = part.tries;
  }
  if (!part.details.empty()) {
    json["details"] = part.details;
  }
  return json;
}

RewardPart part_of(const Json& json) {
  RewardPart part;
  part.score = json.at("score").get<double>();
  part.failed = json.value("failed", false);
  part.error = json.value("error", std::string());
  part.tries = json.value("tries", int64_t{1});
  if (json.contains("details")) {
    part.details = json.at("details").get<std::map<std::string, double>>();
  }
  return part;
}

}  // namespace

std::string to_bytes(std::span<const Sample> samples) {
  Json list = Json::array();
  for (const Sample& sample : samples) {
    Json rewards = Json::object();
    for (const auto& [name, part] : sample.rewards) {
      rewards[name] = part_json(part);
    }
    const std::vector<uint8_t> text(sample.text.begin(), sample.text.end());
    list.push_back({{"group", sample.group},
                    {"index", sample.index},
                    {"prompt", sample.prompt},
                    {"tokens", sample.tokens},
                    {"text", Json::binary(text)},
                    {"logprobs", sample.logprobs},
                    {"sampled_logprobs", sample.sampled_logprobs},
                    {"nuclei", sample.nuclei},
                    {"routes", sample.routes},
                    {"status", static_cast<int>(sample.status)},
                    {"version", sample.version},
                    {"rewards", rewards},
                    {"reward", sample.reward},
                    {"shaped_reward", sample.shaped_reward},
                    {"reward_failed", sample.reward_failed},
                    {"left_out", sample.left_out}});
  }
  const std::vector<uint8_t> bytes = Json::to_cbor(list);
  return {bytes.begin(), bytes.end()};
}

std::vector<Sample> samples_of(std::string_view bytes) {
  std::vector<Sample> samples;
  const Json list = Json::from_cbor(bytes);
  for (const Json& json : list) {
    Sample sample;
    sample.group = json.at("group").get<int64_t>();
    sample.index = json.at("index").get<int64_t>();
    sample.prompt = json.at("prompt").get<int64_t>();
    sample.tokens = json.at("tokens").get<std::vector<int32_t>>();
    const std::vector<uint8_t>& text = json.at("text").get_binary();
    sample.text.assign(text.begin(), text.end());
    sample.logprobs = json.at("logprobs").get<std::vector<double>>();
    sample.sampled_logprobs = json.at("sampled_logprobs").get<std::vector<double>>();
    sample.nuclei = json.at("nuclei").get<std::vector<std::vector<int32_t>>>();
    sample.routes = json.at("routes").get<std::vector<int32_t>>();
    sample.status = static_cast<SampleStatus>(json.at("status").get<int>());
    sample.version = json.at("version").get<int64_t>();
    for (const auto& [name, part] : json.at("rewards").items()) {
      sample.rewards[name] = part_of(part);
    }
    sample.reward = json.at("reward").get<double>();
    sample.shaped_reward = json.at("shaped_reward").get<double>();
    sample.reward_failed = json.at("reward_failed").get<bool>();
    sample.left_out = json.at("left_out").get<bool>();
    samples.push_back(std::move(sample));
  }
  return samples;
}

namespace {

/// Adds the tokens that each token was drawn from: all ids, where those of a token begin, and the
/// tokens with too many to record.
void add_nuclei(const Sample& sample, Json* line) {
  if (sample.nuclei.empty()) return;
  std::vector<int32_t> ids;
  std::vector<int64_t> offsets{0}, unrecorded;
  for (const std::vector<int32_t>& nucleus : sample.nuclei) {
    if (nucleus.empty()) {
      unrecorded.push_back(std::ssize(offsets) - 1);
    }
    ids.insert(ids.end(), nucleus.begin(), nucleus.end());
    offsets.push_back(std::ssize(ids));
  }
  (*line)["rollout_top_p_token_ids"] = std::move(ids);
  (*line)["rollout_top_p_token_offsets"] = std::move(offsets);
  (*line)["rollout_top_p_unrecorded"] = std::move(unrecorded);
}

/// Adds the experts of every token, by layer.
void add_routes(const Sample& sample, int64_t top_k, Json* line) {
  if (sample.routes.empty()) return;
  const auto tokens = static_cast<int64_t>(std::size((*line)["tokens"])) - 1;
  const int64_t width = std::ssize(sample.routes) / std::max<int64_t>(tokens, 1);
  Json& all = (*line)["rollout_routed_experts"] = Json::array();
  for (int64_t token = 0; token < tokens; ++token) {
    Json layers = Json::array();
    for (int64_t at = token * width; at < (token + 1) * width; at += top_k) {
      const auto begin = sample.routes.begin() + at;
      layers.push_back(std::vector<int32_t>(begin, begin + top_k));
    }
    all.push_back(std::move(layers));
  }
}

}  // namespace

std::string to_line(const Sample& sample, const Prompt& prompt, const LossInputs* inputs,
                    const LineOptions& options) {
  Json rewards = Json::object();
  for (const auto& [name, part] : sample.rewards) {
    rewards[name] = part_json(part);
  }
  Json line = {{"group_index", sample.group},
               {"index", sample.index},
               {"rollout_id", sample.group * options.samples_per_prompt + sample.index},
               {"prompt", prompt.text},
               {"prompt_index", prompt.index},
               {"tokens", prompt.ids},
               {"response", sample.text},
               {"response_length", sample.tokens.size()},
               {"label", prompt.ground_truth},
               {"reward", sample.reward},
               {"rewards", rewards},
               {"status", to_string(sample.status)},
               {"weight_versions", {sample.version}},
               {"rollout_log_probs", sample.logprobs}};
  Json& tokens = line["tokens"];
  for (const int32_t token : sample.tokens) {
    tokens.push_back(token);
  }
  if (sample.sampled_logprobs != sample.logprobs) {
    line["rollout_sampled_log_probs"] = sample.sampled_logprobs;
  }
  add_nuclei(sample, &line);
  add_routes(sample, options.top_k, &line);
  if (sample.shaped_reward != sample.reward) {
    line["shaped_reward"] = sample.shaped_reward;
  }
  if (inputs != nullptr) {
    line["remove_sample"] = !inputs->counts;
    std::vector<int> mask(sample.tokens.size(), 1);
    for (size_t t = 0; t < inputs->weights.size(); ++t) {
      mask[t] = inputs->weights[t] != 0 ? 1 : 0;
    }
    line["loss_mask"] = std::move(mask);
    line["advantages"] = inputs->advantages;
    if (options.old_of_trainer) {
      line["log_probs"] = inputs->old;
    }
    if (!inputs->values.empty()) {
      line["values"] = inputs->values;
      line["returns"] = inputs->returns;
    }
    if (!inputs->reference.empty()) {
      line["ref_log_probs"] = inputs->reference;
    }
  }
  line["metadata"] = prompt.extra_info;
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

train::Values sample_metrics(std::span<const Sample> samples, int64_t samples_per_prompt) {
  Moments rewards, deviations, lengths, ended;  // of samples, groups, and samples that ended
  std::map<std::string, Moments> parts;
  int64_t truncated = 0, failed = 0, groups = 0, even = 0;
  for (const Sample& sample : samples) {
    if (!sample.left_out) {
      rewards.add(sample.reward);
    }
    lengths.add(static_cast<double>(sample.tokens.size()));
    if (sample.status == SampleStatus::truncated) {
      ++truncated;
    } else {
      ended.add(static_cast<double>(sample.tokens.size()));
    }
    failed += sample.reward_failed ? 1 : 0;
    for (const auto& [name, part] : sample.rewards) {
      Moments& scores = parts[name];
      if (part.is_not_applicable() || (part.failed && sample.left_out)) continue;
      scores.add(part.score);
      for (const auto& [detail, value] : part.details) {
        parts[name + "/" + detail].add(value);
      }
    }
  }
  for (size_t i = 0; i + static_cast<size_t>(samples_per_prompt) <= samples.size();
       i += static_cast<size_t>(samples_per_prompt)) {
    Moments group;
    for (const Sample& sample : samples.subspan(i, static_cast<size_t>(samples_per_prompt))) {
      if (!sample.left_out) {
        group.add(sample.reward);
      }
    }
    ++groups;
    if (group.n < 2) continue;  // the others are left out
    deviations.add(group.deviation());
    even += group.least == group.most ? 1 : 0;
  }
  const auto n = static_cast<double>(std::max<size_t>(samples.size(), 1));
  train::Values values = {{"reward", rewards.mean()}, {"reward_std", rewards.deviation()}};
  if (samples_per_prompt > 1) {
    values.push_back({"rl/reward_std_in_group", deviations.mean()});
    values.push_back({"frac_reward_zero_std",
                      groups > 0 ? static_cast<double>(even) / static_cast<double>(groups) : 0});
  }
  values.insert(values.end(),
                {{"completions/mean_length", lengths.mean()},
                 {"completions/min_length", lengths.least},
                 {"completions/max_length", lengths.most},
                 {"completions/clipped_ratio", static_cast<double>(truncated) / n},
                 {"completions/mean_terminated_length", ended.n > 0 ? ended.mean() : 0},
                 {"completions/min_terminated_length", ended.least},
                 {"completions/max_terminated_length", ended.most},
                 {"rewards/failed", static_cast<double>(failed) / n}});
  for (const auto& [name, moments] : parts) {
    values.push_back({fmt::format("rewards/{}/mean", name), moments.mean()});
    values.push_back({fmt::format("rewards/{}/std", name), moments.deviation()});
  }
  return values;
}

train::Values evaluation_metrics(std::span<const Sample> samples, int64_t samples_per_prompt,
                                 const std::string& deciding, double right_from) {
  const auto n = static_cast<size_t>(samples_per_prompt);
  const auto groups = static_cast<double>(std::max<size_t>(samples.size() / n, 1));
  train::Values values;
  Moments rewards, lengths, truncated, failed;
  std::vector<int64_t> right(samples.size() / n, 0);
  for (size_t i = 0; i < samples.size(); ++i) {
    const Sample& sample = samples[i];
    if (!sample.left_out) {
      rewards.add(sample.reward);
    }
    lengths.add(static_cast<double>(sample.tokens.size()));
    truncated.add(sample.status == SampleStatus::truncated ? 1 : 0);
    failed.add(sample.reward_failed ? 1 : 0);
    right[i / n] += is_right(sample, deciding, right_from) ? 1 : 0;
  }
  values.push_back({"reward", rewards.mean()});
  for (int64_t k = 1; k <= samples_per_prompt; k *= 2) {
    double sum = 0;
    for (const int64_t count : right) {
      sum += pass_at(k, samples_per_prompt, count);
    }
    values.push_back({fmt::format("pass@{}", k), sum / groups});
  }
  values.push_back({"completions/mean_length", lengths.mean()});
  values.push_back({"completions/clipped_ratio", truncated.mean()});
  values.push_back({"rewards/failed", failed.mean()});
  return values;
}

namespace {

/// Returns the ratio of a sample that gspo clips: the geometric mean over the tokens that count.
double sample_ratio(const LossInputs& inputs, std::span<const double> logprobs) {
  double sum = 0, tokens = 0;
  for (size_t t = 0; t < logprobs.size(); ++t) {
    if (inputs.weights[t] == 0) continue;
    sum += logprobs[t] - inputs.old[t];
    tokens += 1;
  }
  return std::exp(std::min(sum / std::max(tokens, 1.0), 10.0));  // the limit of the loss
}

/// Returns the loss of a token without divergence and entropy (docs/rl-losses.md).
double policy_loss(const engine::RlSection& section, double ratio, double advantage,
                   double logprob) {
  if (section.loss == "reinforce") return -advantage * logprob;
  const double clipped = std::clamp(ratio, 1 - section.clip_low, 1 + section.clip_high);
  if (section.loss == "cispo") return -clipped * advantage * logprob;
  const double loss = std::max(-ratio * advantage, -clipped * advantage);
  const bool is_bounded = section.loss == "ppo" && section.dual_clip > 0 && advantage < 0;
  return is_bounded ? std::min(loss, -section.dual_clip * advantage) : loss;
}

}  // namespace

void UpdateStats::add(const LossInputs& inputs, std::span<const double> logprobs,
                      std::span<const double> entropies) {
  has_reference_ = has_reference_ || !inputs.reference.empty();
  const bool clips = section_.loss != "reinforce", of_samples = section_.loss == "gspo";
  const double of_sample = of_samples ? sample_ratio(inputs, logprobs) : 1;
  double tokens = 0, low = 0, high = 0;  // of the sample
  for (size_t t = 0; t < logprobs.size(); ++t) {
    const double weight = inputs.weights[t];
    if (weight == 0) continue;
    tokens += 1;
    entropy_ += entropies[t];
    verl_entropy_ += weight * entropies[t];
    const double moved = std::clamp(logprobs[t] - inputs.old[t], -20.0, 20.0);
    const double ratio = std::exp(moved);
    ppo_kl_ -= moved;
    moved_ += ratio - 1 - moved;  // k3 of the old policy
    ratio_ += ratio;
    // A clipped ratio stops its token's gradient where the advantage pushes it further out.
    const double advantage = inputs.advantages[t], clipped = of_samples ? of_sample : ratio;
    low += clips && clipped < 1 - section_.clip_low && advantage < 0 ? 1 : 0;
    high += clips && clipped > 1 + section_.clip_high && advantage > 0 ? 1 : 0;
    lower_ += section_.dual_clip > 0 && ratio > section_.dual_clip && advantage < 0 ? 1 : 0;
    pg_loss_ += weight * policy_loss(section_, clipped, inputs.loss_advantage(t), logprobs[t]);
    if (!inputs.reference.empty()) {
      const double d = logprobs[t] - inputs.reference[t];
      kl_ += k3_of(-d);
      kl_loss_ += weight * divergence(section_.kl_estimator, d);
    }
  }
  if (tokens == 0) return;
  tokens_ += tokens;
  low_ += low;
  high_ += high;
  low_of_samples_ += low / tokens;
  high_of_samples_ += high / tokens;
  least_low_ = samples_ == 0 ? low / tokens : std::min(least_low_, low / tokens);
  most_high_ = std::max(most_high_, high / tokens);
  samples_ += 1;
}

double UpdateStats::loss() const {
  if (tokens_ == 0) return kNothing;
  const bool has_kl = has_reference_ && section_.kl_in == "loss";
  return pg_loss_ + (has_kl ? section_.kl_coef * kl_loss_ : 0) -
         section_.entropy_coef * verl_entropy_;
}

train::Values UpdateStats::means() const {
  const double n = tokens_;
  const bool of_samples = section_.loss == "gspo";
  const double low = of_samples ? low_of_samples_ / samples_ : low_ / n;
  const double high = of_samples ? high_of_samples_ / samples_ : high_ / n;
  train::Values values = {{"entropy", entropy_ / n},
                          {"clip_ratio/low_mean", low},
                          {"clip_ratio/low_min", least_low_},
                          {"clip_ratio/high_mean", high},
                          {"clip_ratio/high_max", most_high_},
                          {"clip_ratio/region_mean", low + high},
                          {"ratio", ratio_ / n},
                          {"approx_kl", moved_ / n},
                          {"actor/pg_loss", pg_loss_},
                          {"actor/entropy", verl_entropy_},
                          {"actor/ppo_kl", ppo_kl_ / n},
                          {"actor/pg_clipfrac", (low_ + high_) / n},
                          {"actor/pg_clipfrac_lower", lower_ / n}};
  if (section_.loss == "cispo") {
    values.push_back({"cispo_clip_ratio", high});
  }
  if (has_reference_) {
    values.push_back({"kl", kl_ / n});
    if (section_.kl_in == "loss") {
      values.push_back({"actor/kl_loss", kl_loss_});
      values.push_back({"actor/kl_coef", section_.kl_coef});
    }
  }
  if (tokens_ == 0) {
    for (auto& [name, value] : values) {
      value = kNothing;
    }
  }
  return values;
}

void Mismatch::add(std::span<const double> sampled, std::span<const double> trained) {
  HOCKET_CHECK(sampled.size() == trained.size(), "{} sampled and {} trained tokens", sampled.size(),
               trained.size());
  for (size_t t = 0; t < sampled.size(); ++t) {
    const double apart = std::abs(sampled[t] - trained[t]);
    // Not-a-number counts as the largest there is.
    const bool differs = !(sampled[t] == trained[t]);
    largest = std::isnan(apart) ? INFINITY : std::max(largest, apart);
    sum += std::isnan(apart) ? 0 : apart;
    unequal += differs ? 1 : 0;
    ++tokens;
    const double between = std::abs(std::exp(sampled[t]) - std::exp(trained[t]));
    if (std::isnan(between)) continue;
    largest_of_probabilities = std::max(largest_of_probabilities, between);
    sum_of_probabilities += between;
    squares_of_probabilities += between * between;
  }
}

train::Values Mismatch::values() const {
  if (tokens == 0) return {};
  const auto n = static_cast<double>(tokens);
  const double mean = sum_of_probabilities / n;
  const double variance = (squares_of_probabilities - n * mean * mean) / std::max(n - 1, 1.0);
  return {{"sampling/sampling_logp_difference/mean", sum / n},
          {"sampling/sampling_logp_difference/max", largest},
          {"rl/compared_share", n / static_cast<double>(std::max(all_tokens, tokens))},
          {"training/rollout_probs_diff_max", largest_of_probabilities},
          {"training/rollout_probs_diff_mean", mean},
          {"training/rollout_probs_diff_std", std::sqrt(std::max(variance, 0.0))}};
}

std::string Mismatch::text() const {
  if (unequal == 0 && tokens >= all_tokens) return fmt::format("0 in all of {} tokens", tokens);
  const std::string of = tokens >= all_tokens
                             ? fmt::format("{} tokens", tokens)
                             : fmt::format("{} tokens compared of {}", tokens, all_tokens);
  if (unequal == 0) return "0 in all of " + of;
  return fmt::format("up to {:.2g} in {} of {}", largest, unequal, of);
}

}  // namespace hocket::rl
