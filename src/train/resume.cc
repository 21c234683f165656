// SPDX-License-Identifier: Apache-2.0
#include "train/resume.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/json_writer.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/missing_parts.h"
#include "comm/run_on_all.h"
#include "engine/params.h"

namespace hocket::train {
namespace {

using nlohmann::json;
/// Returns the configuration that saved a checkpoint, with the keys of today.
json current_config(const checkpoint::Checkpoint& from) {
  json config = parse_json(from.state().config, from.folder() + "/run.json: config");
  json& train = config["train"];
  json& optimizer = config["optimizer"];
  if (optimizer.is_null()) {
    optimizer = json::object();
  }
  for (const auto& [former, key] : {std::pair("optimizer", "name"),
                                    {"weight_decay", "weight_decay"},
                                    {"beta1", "beta1"},
                                    {"beta2", "beta2"},
                                    {"eps", "eps"}}) {
    if (train.is_object() && train.contains(former) && !optimizer.contains(key)) {
      optimizer[key] = train[former];
      train.erase(former);
    }
  }
  // Rewards that were saved before a key was there have its default.
  const json::json_pointer rewards("/rl/rewards");
  if (config.contains(rewards)) {
    engine::RunConfig defaults;
    const json all = parse_config(defaults, "rl: {rewards: [{type: exact}]}", "defaults").to_json();
    for (json& reward : config[rewards]) {
      if (!reward.is_object()) continue;
      json complete = all.at(rewards).at(0);
      complete.update(reward);
      reward = std::move(complete);
    }
  }
  return config;
}

bool is_unset_token(const std::string& key, const json& value) {
  return key.ends_with("_token_id") && (value.is_null() || value.empty());
}

/// Compares the keys of section `adapter`, but for those that may change between steps.
template <typename Compare>
void compare_adapters(const json& saved, const json& now, const Compare& compare) {
  engine::RunConfig defaults;
  const json otherwise = parse_config(defaults, "{}", "defaults").to_json().at("adapter");
  const auto compare_key = [&](const std::string& key) {
    const json::json_pointer at("/adapter/" + key);
    compare("adapter." + key, saved.contains(at) ? saved.at(at) : otherwise.at(key),
            now.at("adapter").at(key));
  };
  compare_key("type");  // the others follow from it
  for (const auto& [key, value] : now.at("adapter").items()) {
    if (key == "path" || key == "dropout") continue;
    compare_key(key);
  }
}

/// Keys of the ways to the same rewards: a judge may have moved, and a limit been too low.
constexpr std::array kFreeOfRewards = {
    "timeout_s", "start_timeout_s", "busy_timeout_s", "retries", "processes", "url", "api_key_env"};

/// Compares values under a key of section `rl`, part by part, so that a message names the one that
/// differs. Requires: `saved` and `now` are of one type if they are objects or lists.
template <typename Compare>
void compare_parts(const std::string& key, const json& saved, const json& now,
                   const Compare& compare) {
  if (now.is_object() && saved.is_object()) {
    for (const auto& [name, value] : now.items()) {
      const bool is_free = key == "rl.dynamic_sampling"
                               ? name == "max_rounds"
                               : key.starts_with("rl.rewards[") &&
                                     std::find(kFreeOfRewards.begin(), kFreeOfRewards.end(),
                                               name) != kFreeOfRewards.end();
      if (is_free) continue;
      compare_parts(key + "." + name, saved.value(name, json()), value, compare);
    }
  } else if (now.is_array() && saved.is_array() && now.size() == saved.size()) {
    for (size_t i = 0; i < now.size(); ++i) {
      compare_parts(fmt::format("{}[{}]", key, i), saved[i], now[i], compare);
    }
  } else {
    compare(key, saved, now);
  }
}

/// Keys of section `rl` that may change between steps, although other samples or losses follow.
constexpr std::array kFreeOfLoss = {"kl_coef", "entropy_coef", "clip_low", "clip_high",
                                    "temperature"};

/// Compares the keys of section `rl`, but for those that change neither samples nor losses, and
/// kFreeOfLoss.
template <typename Compare>
void compare_rl(const json& saved, const json& now, const Compare& compare) {
  engine::RunConfig defaults;
  const json otherwise = parse_config(defaults, "{}", "defaults").to_json().at("rl");
  for (const auto& [key, value] : now.at("rl").items()) {
    bool is_free = key.starts_with("eval_") ||
                   std::find(kFreeOfLoss.begin(), kFreeOfLoss.end(), key) != kFreeOfLoss.end();
    for (const char* free :
         {"trajectories", "reward_workers", "max_failed_rewards", "strict", "prefix_caching",
          "kv_cache_memory", "max_num_seqs", "max_num_batched_tokens", "right_from"}) {
      is_free = is_free || key == free;
    }
    if (is_free) continue;
    const json::json_pointer at("/rl/" + key);
    json was = otherwise.at(key);
    if (saved.contains(at) && was.is_object() && saved.at(at).is_object()) {
      was.update(saved.at(at));  // an older checkpoint may lack keys
    } else if (saved.contains(at)) {
      was = saved.at(at);
    }
    compare_parts("rl." + key, was, value, compare);
  }
}

/// Compares the keys that decide which tokens examples or prompts become, and which are held out.
template <typename Compare>
void compare_sources(const json& saved, const json& now, const Compare& compare) {
  engine::RunConfig defaults;
  const json otherwise = parse_config(defaults, "{}", "defaults").to_json();
  for (const char* key : {"data/sources", "data/train_on", "data/chat_template", "data/tokenizer",
                          "data/split_special_tokens", "data/valid_fraction", "data/packing",
                          "data/truncate", "data/split_texts", "model/path"}) {
    const json::json_pointer at(std::string("/") + key);
    std::string name = key;
    std::replace(name.begin(), name.end(), '/', '.');
    compare_parts(name, saved.contains(at) ? saved.at(at) : otherwise.at(at), now.at(at), compare);
  }
}

/// Throws Error for examples or prompts that are not those of the checkpoint. It has the keys that
/// differ; without such keys, files do.
void fail_for_examples(const json& saved, const json& now, const checkpoint::Checkpoint& from) {
  std::vector<std::string> before, after;  // "key = value"
  compare_sources(saved, now, [&](const std::string& key, const json& was, const json& is) {
    if (was == is) return;
    before.push_back(fmt::format("{} = {}", key, was.dump()));
    after.push_back(fmt::format("{} = {}", key, is.dump()));
  });
  if (!before.empty()) {
    fail(from.folder(),
         "was saved with {}; this run has {}, and the data differ; set {} back, or put changed "
         "files of data.sources back, or choose another output.dir",
         join(before, ", "), join(after, ", "), before.size() == 1 ? "it" : "them");
  }
  fail(from.folder(),
       "was saved with other data under the same keys: files of data.sources, the tokenizer or the "
       "chat template have changed; put them back, or choose another output.dir");
}

/// Compares the keys of section `preference`, but for the way to the same values.
template <typename Compare>
void compare_preferences(const json& saved, const json& now, const Compare& compare) {
  engine::RunConfig defaults;
  const json otherwise = parse_config(defaults, "{}", "defaults").to_json().at("preference");
  for (const auto& [key, value] : now.at("preference").items()) {
    if (key == "precompute_ref_log_probs") continue;
    const json::json_pointer at("/preference/" + key);
    json before = saved.contains(at) ? saved.at(at) : otherwise.at(key);
    if (key == "loss_type" && before.is_string()) {
      before = json::array({before});
    }
    compare("preference." + key, before, value);
  }
}

}  // namespace

std::string Position::to_json() const {
  JsonWriter out;
  out.object()
      .member("fingerprint", fingerprint)
      .member("program_hash", certificate.program.hex())
      .member("reference_hash", certificate.reference.hex())
      .member("mesh_hash", certificate.mesh.hex())
      .member("mesh", certificate.ranks)
      .member("began_with", began_with)
      .member("base_files", frozen.base)
      .member("reference_files", frozen.reference)
      .member("steps", course.steps)
      .member("steps_since", course.since)
      .member("way_done", course.done)
      .member("skipped", skipped)
      .member("time_s", time_s)
      .member("kernels", kernels)
      .member("best_step", best.step)
      .member("best_loss", best.step > 0 ? best.loss : 0.0)
      .member("best_of", best.set)
      .member("best_rows", best.rows)
      .member("evaluations_worse", best.worse)
      .member("prompts", prompts)
      .member("tokens", tokens)
      .member("generated", generated)
      .member("warmups", warmups);
  if (beginning) {
    out.member("beginning", *beginning);
  }
  return out.end().take();
}

Position Position::of(const checkpoint::Checkpoint& from) {
  const std::string where = from.folder() + "/run.json: data";
  const json object = parse_json(from.state().data, where);
  const JsonView in(object, where);
  Position position;
  position.fingerprint = in.get_string("fingerprint");
  if (in.has("reference_hash")) {
    position.certificate = check::parse_certificate(in);
  }
  if (in.has("began_with")) {
    position.began_with = in.get_string("began_with");
  }
  for (const auto& [key, files] : {std::pair("base_files", &position.frozen.base),
                                   {"reference_files", &position.frozen.reference}}) {
    if (in.has(key)) {
      *files = in.at(key).as_strings();
    }
  }
  position.course.steps = in.get_int("steps", 0);
  position.course.since = in.get_int("steps_since", 0);
  position.course.done = in.get_double("way_done", 0);
  position.skipped = in.get_int("skipped", 0);
  if (in.has("time_s")) {
    position.time_s = in.get_double("time_s");
  }
  if (in.has("kernels")) {
    position.kernels = in.get_string("kernels");
  }
  position.best.step = in.get_int("best_step", 0);
  if (position.best.step > 0) {
    position.best.loss = in.get_double("best_loss", 0);
  }
  position.best.worse = in.get_int("evaluations_worse", 0);
  position.prompts = in.get_int("prompts", 0);
  position.tokens = in.get_int("tokens", 0);
  position.generated = in.get_int("generated", position.tokens);
  position.warmups = in.get_int("warmups", 0);
  if (in.has("best_of")) {
    position.best.set = in.get_string("best_of");
  }
  position.best.rows = in.get_string("best_rows", "");
  return position;
}

void check_same_training(const engine::Run& run, const std::string& data_fingerprint,
                         const checkpoint::Checkpoint& from) {
  const std::string path = from.folder() + "/run.json";
  const json config = current_config(from);
  const JsonView model = JsonView(config, path + ": config").at("model");
  const JsonView train = JsonView(config, path + ": config").at("train");
  const JsonView optimizer = JsonView(config, path + ": config").at("optimizer");
  const engine::TrainSection& section = run.config.train;
  const auto compare = [&from](const std::string& key, const json& saved, const json& now) {
    if (saved != now) {
      fail(from.folder(),
           "was saved with {} = {}; this run has {}; set it back, or choose another "
           "output.dir",
           key, saved.dump(), now.dump());
    }
  };
  const json saved = models::values_of(from.config());
  const nlohmann::ordered_json values = models::values_of(run.model);
  for (const auto& [key, now] : values.items()) {
    // Tokens missing in the model are the tokenizer's in the checkpoint, or missing as well.
    if (is_unset_token(key, now)) continue;
    compare("the model's " + key, saved.at(key), now);
  }
  const JsonView all(config, path + ": config");
  const json resolved = run.resolved.to_json();
  compare("objective", all.get_string("objective", "pretrain"), resolved.at("objective"));
  if (run.config.prefers()) {
    compare_preferences(config, resolved, compare);
  }
  if (run.config.objective == engine::Objective::rl) {
    compare_rl(config, resolved, compare);
  }
  compare("model.dtype", model.get_string("dtype"), run.config.model.dtype);
  compare("optimizer.name", optimizer.get_string("name", "adamw"), run.config.optimizer.name);
  compare("train.freeze", train.has("freeze") ? train.at("freeze").json() : json::array(),
          section.freeze);
  compare_adapters(config, resolved, compare);
  if (run.lora && from.adapter() != nullptr) {
    // adapter.path has a configuration that the keys do not show.
    const models::LoraPlan plan = models::match_lora(run.model, *run.lora, run.name);
    const models::LoraPlan& before = from.adapter()->plan();
    if (plan.modules != before.modules || plan.saved != before.saved) {
      fail(from.folder(),
           "has an adapter of other modules, ranks or scales than adapter.path {}; set it back, or "
           "choose another output.dir",
           run.config.adapter.path);
    }
  }
  compare("train.seed", from.state().seed, section.seed);
  if (run.config.objective != engine::Objective::rl) {
    compare("train.global_batch", train.get_int("global_batch"), section.global_batch);
  }
  compare("train.seq_len", train.get_int("seq_len"), section.seq_len);
  const std::string fingerprint = Position::of(from).fingerprint;
  if (run.config.objective == engine::Objective::pretrain) {
    compare("data.dir's fingerprint", fingerprint, data_fingerprint);
  } else if (fingerprint != data_fingerprint) {
    fail_for_examples(config, resolved, from);
  }
}

std::vector<ChangedNumber> changed_loss(const engine::Run& run,
                                        const checkpoint::Checkpoint& from) {
  std::vector<ChangedNumber> changes;
  if (run.config.objective != engine::Objective::rl) return changes;
  const json saved = current_config(from);
  const json now = run.resolved.to_json();
  for (const char* key : kFreeOfLoss) {
    const json::json_pointer at(std::string("/rl/") + key);
    const double is = now.at(at).get<double>();
    const double was = saved.contains(at) ? saved.at(at).get<double>() : is;
    if (was != is) {
      changes.push_back({std::string("rl.") + key, was, is});
    }
  }
  return changes;
}

std::vector<std::string> changed_settings(const engine::Run& run,
                                          const checkpoint::Checkpoint& from) {
  const json saved = current_config(from);
  const json now = run.resolved.to_json();
  engine::RunConfig defaults;
  const json otherwise = parse_config(defaults, "{}", "defaults").to_json();
  // Weights that are not in the checkpoint are read again: an adapter's base, and a reference.
  const bool reads_model = run.lora ||
                           (run.config.prefers() && run.config.preference.reference.empty()) ||
                           (run.config.objective == engine::Objective::rl &&
                            run.config.rl.kl_coef > 0 && run.config.rl.reference.empty());
  std::vector<std::string> changes;
  for (const auto& [section, keys] : now.items()) {
    if (!keys.is_object()) continue;
    for (const auto& [key, value] : keys.items()) {
      if (section == "model" && !(reads_model && key == "path")) continue;
      const json::json_pointer at("/" + section + "/" + key);
      const json& before = saved.contains(at) ? saved.at(at) : otherwise.at(at);
      const auto shown = [](const json& object) {
        return object.is_null() ? "default" : object.dump();
      };
      if (before != value) {
        changes.push_back(fmt::format("{}.{} {} -> {}", section, key, shown(before), shown(value)));
      }
    }
  }
  return changes;
}

namespace {

/// Throws Error if another host has a part that a rank needs, before anything is read.
void expect_parts(const checkpoint::Checkpoint& from, const engine::Compiled& compiled,
                  const runtime::LocalRanks& ranks) {
  if (!from.is_partial()) return;
  checkpoint::MissingParts missing(from);
  for (const graph::Tensor& tensor : compiled.reference.tensors) {
    if (tensor.kind == graph::TensorKind::param && from.has(tensor.name)) {
      engine::for_each_element_run(
          tensor, compiled.program, ranks,
          [&](int64_t begin, int64_t count) { missing.need_param(tensor.name, begin, count); });
    }
    if (tensor.kind == graph::TensorKind::state) {
      engine::for_each_element_run(tensor, compiled.program, ranks,
                                   [&](int64_t begin, int64_t count) {
                                     missing.need_optimizer(tensor.name, tensor.type, begin, count);
                                   });
    }
  }
  if (const std::string what = missing.text(); !what.empty()) fail(from.folder(), "{}", what);
}

}  // namespace

void restore(const checkpoint::Checkpoint& from, const engine::Compiled& compiled,
             const runtime::Store& store) {
  comm::run_on_all(store.ranks().processes(), [&] {
    expect_parts(from, compiled, store.ranks());
    for (const graph::Tensor& tensor : compiled.reference.tensors) {
      if (tensor.kind == graph::TensorKind::param && from.has(tensor.name)) {
        engine::scatter(tensor, compiled.program, store,
                        [&](int64_t begin, int64_t count, void* to) {
                          from.load_range(tensor.name, begin, count, tensor.type.dtype, to);
                        });
      }
      if (tensor.kind == graph::TensorKind::state) {
        engine::scatter(tensor, compiled.program, store,
                        [&](int64_t begin, int64_t count, void* to) {
                          from.load_optimizer_range(tensor.name, tensor.type, begin, count, to);
                        });
      }
    }
    return std::string();
  });
}

std::string save(const checkpoint::RunFolder& folder, const engine::Compiled& compiled,
                 const runtime::Store& store, checkpoint::CheckpointContent content) {
  // Replicas within one file system exist once.
  const std::vector<int32_t>& known = folder.hosts()[static_cast<size_t>(folder.host())].ranks;
  const engine::Owners owners(compiled.program, store, known.empty() ? store.ranks().ids() : known);
  // An adapter's parameters are in its files also where train.freeze leaves them as they began.
  std::set<std::string> own;
  if (content.adapter) {
    for (const models::ParamWeights& weights : content.adapter->weights) {
      own.insert(weights.param);
    }
  }
  for (const graph::Tensor& tensor : compiled.reference.tensors) {
    const bool param = tensor.kind == graph::TensorKind::param;
    if (!param && tensor.kind != graph::TensorKind::state) continue;
    if (param && content.adapter && !own.contains(tensor.name)) continue;
    auto& list = param ? content.params : content.optimizer;
    list.push_back({tensor.name, tensor.type, [&] { return owners.shares(tensor); },
                    [&store](int32_t rank, void* to, const void* from, int64_t bytes) {
                      store.at(rank).device().copy(to, from, bytes);
                    }});
  }
  return checkpoint::save_checkpoint(folder, content);
}

}  // namespace hocket::train
