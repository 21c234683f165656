// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/slices.h"

namespace hocket::checkpoint {

using models::ExpertLayout;
using models::Lora;
using models::LoraPlan;
using models::LoraTarget;
using models::WeightForm;
using models::WeightSlice;
using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;
/// The version of PEFT that defines the written layouts of experts.
constexpr const char* kPeftVersion = "0.19.0";

/// Keys that say nothing about the numbers of an adapter.
constexpr const char* kIgnored[] = {
    "auto_mapping",  "base_model_name_or_path", "revision",     "inference_mode",
    "task_type",     "fan_in_fan_out",          "peft_type",    "peft_version",
    "megatron_core", "qalora_group_size",       "loftq_config", "eva_config"};

bool is_unset(const json& value) {
  return value.is_null() || value == json(false) || value == json("") ||
         (value.is_structured() && value.empty());
}

/// Refuses a variant of LoRA by its key.
void expect_plain_lora(const JsonView& in) {
  const std::string& where = in.where();
  if (const std::string type = in.get_string("peft_type"); type != "LORA") {
    fail(where, "peft_type is {}; expected LORA", quote(type));
  }
  if (in.has("task_type") && in.get_string("task_type") != "CAUSAL_LM") {
    fail(where, "task_type is {}; expected CAUSAL_LM", quote(in.get_string("task_type")));
  }
  if (in.get_bool("use_dora", false)) {
    fail(where, "use_dora is true: DoRA is not supported; expected plain LoRA");
  }
  if (in.get_bool("use_qalora", false)) {
    fail(where, "use_qalora is true: QALoRA is not supported; expected plain LoRA");
  }
  if (const std::string bias = in.get_string("bias", "none"); bias != "none") {
    fail(where, "bias is {}; expected none: biases are not trained", quote(bias));
  }
  if (in.has("init_lora_weights")) {
    // These only set the numbers that training began with. Others change the base's weights.
    constexpr const char* kOfAdapter[] = {"gaussian", "eva", "orthogonal", "mica"};
    const JsonView given = in.at("init_lora_weights");
    const json& init = given.json();
    const bool is_kept =
        init.is_boolean() || std::any_of(std::begin(kOfAdapter), std::end(kOfAdapter),
                                         [&](const char* name) { return init == json(name); });
    if (!is_kept) {
      fail(where,
           "init_lora_weights is {}, which is not known to leave the base's weights as they are; "
           "expected true, false, {}",
           init.dump(), fmt::join(kOfAdapter, ", "));
    }
  }
}

template <typename Number>
std::vector<std::pair<std::string, Number>> pattern_of(const JsonView& in, const char* key) {
  std::vector<std::pair<std::string, Number>> list;
  if (!in.has(key)) return list;
  const JsonView at = in.at(key);
  for (const std::string& pattern : at.keys()) {
    const JsonView value = at.at(pattern);
    if constexpr (std::is_same_v<Number, int64_t>) {
      list.emplace_back(pattern, value.as_int());
    } else {
      list.emplace_back(pattern, value.as_double());
    }
  }
  return list;
}

std::optional<ExpertLayout> layout_of(const JsonView& in) {
  if (!in.has("peft_version")) return {};
  const std::string version = in.get_string("peft_version");
  const std::vector<std::string> parts = split(version, '.');
  int64_t major = 0;
  int64_t minor = 0;
  if (parts.size() < 2 || !parse_int(parts[0], &major) || !parse_int(parts[1], &minor)) {
    in.at("peft_version")
        .fail(fmt::format("is {}; expected a version such as 0.19.0", quote(version)));
  }
  constexpr int64_t kFirstUsual = 19;
  return major > 0 || minor >= kFirstUsual ? ExpertLayout::usual : ExpertLayout::swapped;
}

/// Number as PEFT writes it: an integer where it is one.
ordered_json number(double value) {
  constexpr double kExact = 0x1p53;
  if (value == std::floor(value) && std::abs(value) < kExact) return static_cast<int64_t>(value);
  return value;
}

template <typename Pairs>
ordered_json object_of(const Pairs& pairs) {
  ordered_json object = ordered_json::object();
  for (const auto& [pattern, value] : pairs) {
    object[pattern] = number(static_cast<double>(value));
  }
  return object;
}

ordered_json list_or_null(const std::vector<std::string>& list) {
  return list.empty() ? ordered_json(nullptr) : ordered_json(list);
}

/// Returns whether a tensor is of one expert's projection: "….experts.3.up_proj.lora_A.weight".
bool is_of_one_expert(const std::string& tensor) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t begin = tensor.find(kExperts);
  if (begin == std::string::npos || tensor.find(".lora_") == std::string::npos) return false;
  const size_t at = begin + kExperts.size();
  return at < tensor.size() && std::isdigit(static_cast<unsigned char>(tensor[at])) != 0;
}

int64_t product(const graph::Dims& dims) {
  int64_t elements = 1;
  for (const int64_t dim : dims) {
    elements *= dim;
  }
  return elements;
}

}  // namespace

bool is_adapter(const std::string& folder) {
  return file_exists(join_path(folder, kAdapterConfigFile));
}

AdapterConfig read_adapter_config(const std::string& folder) {
  const std::string path = join_path(folder, kAdapterConfigFile);
  const json object = read_json(path, {.max_bytes = kMaxConfigBytes});
  const JsonView in(object, path);
  expect_plain_lora(in);
  AdapterConfig config;
  Lora& lora = config.lora;
  constexpr int64_t kRank = 8;
  constexpr double kAlpha = 8;
  lora.r = in.get_int("r", kRank);
  lora.lora_alpha = in.get_double("lora_alpha", kAlpha);
  lora.lora_dropout = in.get_double("lora_dropout", 0);
  lora.use_rslora = in.get_bool("use_rslora", false);
  if (in.has("target_modules")) {
    const JsonView targets = in.at("target_modules");
    if (targets.is_string()) {
      lora.target_pattern = targets.as_string();
    } else {
      lora.target_modules = targets.as_strings();
    }
  }
  if (in.has("target_parameters")) {
    lora.target_parameters = in.at("target_parameters").as_strings();
  }
  if (in.has("modules_to_save")) {
    lora.modules_to_save = in.at("modules_to_save").as_strings();
  }
  if (in.has("layers_to_transform")) {
    const JsonView layers = in.at("layers_to_transform");
    lora.layers_to_transform =
        layers.is_array() ? layers.as_ints() : std::vector<int64_t>{layers.as_int()};
  }
  lora.rank_pattern = pattern_of<int64_t>(in, "rank_pattern");
  lora.alpha_pattern = pattern_of<double>(in, "alpha_pattern");
  if (in.has("base_model_name_or_path")) {
    config.base = in.get_string("base_model_name_or_path");
  }
  config.layout = layout_of(in);
  std::set<std::string> known(std::begin(kIgnored), std::end(kIgnored));
  known.insert({"r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules", "bias",
                "target_parameters", "modules_to_save", "layers_to_transform", "rank_pattern",
                "alpha_pattern", "use_dora", "use_qalora", "init_lora_weights"});
  for (const std::string& key : in.keys()) {
    if (known.contains(key) || !in.has(key) || is_unset(in.at(key).json())) continue;
    fail(path, "{} is {}, which is not supported; expected null", key, in.at(key).json().dump());
  }
  return config;
}

std::string adapter_config_json(const LoraPlan& plan, const models::ModelConfig& model,
                                const std::string& base) {
  const Lora& lora = plan.lora;
  ordered_json out;
  out["auto_mapping"] = nullptr;
  out["base_model_name_or_path"] = base.empty() ? ordered_json(nullptr) : ordered_json(base);
  out["bias"] = "none";
  out["fan_in_fan_out"] = models::stores_transposed(model);
  out["inference_mode"] = true;
  out["init_lora_weights"] = true;
  out["layers_pattern"] = nullptr;
  out["layers_to_transform"] = lora.layers_to_transform.empty()
                                   ? ordered_json(nullptr)
                                   : ordered_json(lora.layers_to_transform);
  out["lora_alpha"] = number(lora.lora_alpha);
  out["lora_bias"] = false;
  out["lora_dropout"] = lora.lora_dropout;
  out["modules_to_save"] = list_or_null(lora.modules_to_save);
  out["peft_type"] = "LORA";
  out["peft_version"] = kPeftVersion;
  out["r"] = lora.r;
  out["rank_pattern"] = object_of(lora.rank_pattern);
  out["alpha_pattern"] = object_of(lora.alpha_pattern);
  if (lora.target_pattern == "all-linear") {
    std::set<std::string> ends;
    for (const models::LoraModule& module : plan.modules) {
      if (module.expert) continue;
      ends.insert(module.name.substr(module.name.rfind('.') + 1));
    }
    out["target_modules"] = ends;
  } else if (!lora.target_pattern.empty()) {
    out["target_modules"] = lora.target_pattern;
  } else {
    out["target_modules"] = lora.target_modules;
  }
  out["target_parameters"] = list_or_null(lora.target_parameters);
  out["task_type"] = "CAUSAL_LM";
  out["use_dora"] = false;
  out["use_rslora"] = lora.use_rslora;
  return out.dump(2) + "\n";
}

std::string base_of(const std::string& folder) {
  const std::string base = read_adapter_config(folder).base;
  if (base.empty()) {
    fail(folder, "{} names no base_model_name_or_path; try the base model with --adapter {}",
         kAdapterConfigFile, folder);
  }
  if (base[0] != '/' && !file_exists(base)) {
    const std::string beside = join_path(folder, base);
    if (file_exists(beside)) return beside;
  }
  return base;
}

namespace {

/// Returns the path of a folder's tensors. Throws Error if it has pickled ones alone.
std::string tensors_of(const std::string& folder, const char* file) {
  const std::string path = join_path(folder, file);
  const std::string pickled = join_path(folder, kPickledAdapterFile);
  if (!file_exists(path) && file_exists(pickled)) {
    fail(folder,
         "has {} alone: pickled files are not read, since they can run code; expected {}; try: "
         "python3 -c \"import torch, safetensors.torch as st; "
         "st.save_file(torch.load('{}', map_location='cpu', weights_only=True), '{}')\"",
         kPickledAdapterFile, kAdapterFile, pickled, path);
  }
  return path;
}

}  // namespace

AdapterWeights::AdapterWeights(const std::string& folder, const models::ModelConfig& config,
                               const char* file)
    : folder_(folder), file_(tensors_of(folder, file)) {
  const AdapterConfig read = read_adapter_config(folder);
  const auto plan_as = [&](ExpertLayout layout) {
    return models::match_lora(config, read.lora, folder, layout);
  };
  std::optional<ExpertLayout> layout = read.layout;
  const std::vector<std::string> names = file_.names();
  if (std::any_of(names.begin(), names.end(), is_of_one_expert)) {
    layout = ExpertLayout::modules;
  }
  if (!layout && !read.lora.target_parameters.empty()) {
    // Without a version the shapes decide.
    std::vector<ExpertLayout> fitting;
    for (const ExpertLayout each : {ExpertLayout::usual, ExpertLayout::swapped}) {
      match(plan_as(each));
      if (mismatch().empty()) {
        fitting.push_back(each);
      }
    }
    if (fitting.size() > 1) {
      fail(folder,
           "{} has no peft_version, and tensors of experts fit both the layout until 0.18 and that "
           "from 0.19 on; expected the version that wrote them",
           kAdapterConfigFile);
    }
    if (!fitting.empty()) {
      layout = fitting[0];
    }
  }
  match(plan_as(layout.value_or(ExpertLayout::usual)));
  if (const std::string what = mismatch(); !what.empty()) fail(file_.path(), "{}", what);
  expect_no_other();
  warn_if_zero();
}

void AdapterWeights::match(LoraPlan plan) {
  plan_ = std::move(plan);
  stored_.clear();
  targets_.clear();
  for (const models::ParamWeights& param : plan_.weights) {
    stored_[param.param] = {param.forms[0], product(param.dims)};
  }
  for (const LoraTarget& target : plan_.targets) {
    targets_[target.weight] = &target;
  }
}

/// Returns the first tensor that is missing or of another shape; empty: there is none.
std::string AdapterWeights::mismatch() const {
  for (const auto& [param, stored] : stored_) {
    for (const WeightSlice& slice : stored.form) {
      const StoredTensor* const tensor = file_.find(slice.name).tensor;
      if (tensor == nullptr) {
        return fmt::format("tensor {} is missing", quote(slice.name, slice.name.size()));
      }
      if (tensor->dims != slice.dims) {
        return fmt::format("tensor {} has shape [{}]; expected [{}] by the configuration",
                           quote(slice.name, slice.name.size()), fmt::join(tensor->dims, ","),
                           fmt::join(slice.dims, ","));
      }
    }
  }
  return "";
}

void AdapterWeights::expect_no_other() const {
  std::set<std::string> known;
  for (const auto& [param, stored] : stored_) {
    for (const WeightSlice& slice : stored.form) {
      known.insert(slice.name);
    }
  }
  for (const std::string& name : file_.names()) {
    if (!known.contains(name)) {
      fail(file_.path(), "tensor {} belongs to no target of {}; expected the tensors of {}",
           quote(name, name.size()), kAdapterConfigFile,
           counted(std::ssize(plan_.modules), "module"));
    }
  }
}

void AdapterWeights::warn_if_zero() const {
  std::vector<double> part;
  constexpr int64_t kPart = int64_t{1} << 16;
  for (const LoraTarget& target : plan_.targets) {
    const int64_t numel = product(target.b_dims);
    for (int64_t at = 0; at < numel; at += kPart) {
      const int64_t n = std::min(kPart, numel - at);
      part.assign(static_cast<size_t>(n), 0);
      load_range(target.b, at, n, graph::DType::f64, part.data());
      if (std::any_of(part.begin(), part.end(), [](double x) { return x != 0; })) return;
    }
  }
  if (!plan_.targets.empty()) {
    log_warning("{}: all of B is zero, so that the adapter changes nothing", folder_);
  }
}

const WeightForm& AdapterWeights::slices(std::string_view param) const {
  const auto at = stored_.find(param);
  HOCKET_CHECK(at != stored_.end(), "the adapter has no parameter '{}'", param);
  return at->second.form;
}

void AdapterWeights::load_range(std::string_view param, int64_t first, int64_t count,
                                graph::DType dtype, void* dst) const {
  // Where two modules have different ranks, the rest is 0.
  std::fill_n(static_cast<char*>(dst), count * graph::size_of(dtype), char{0});
  load_over(param, first, count, dtype, dst);
}

bool AdapterWeights::has_part(std::string_view param) const {
  return std::find(plan_.partly_saved.begin(), plan_.partly_saved.end(), param) !=
         plan_.partly_saved.end();
}

void AdapterWeights::load_over(std::string_view param, int64_t first, int64_t count,
                               graph::DType dtype, void* dst) const {
  read_slices(file_, slices(param), first, count, dtype, dst);
}

std::shared_ptr<const AdapterWeights::Factors> AdapterWeights::factors_of(
    const LoraTarget& target) const {
  const std::lock_guard lock(mutex_);
  if (last_ && last_->weight == target.weight) return last_;
  auto made = std::make_shared<Factors>();
  made->weight = target.weight;
  const auto read = [&](const std::string& name, const graph::Dims& dims) {
    std::vector<float> values(static_cast<size_t>(product(dims)));
    load_range(name, 0, std::ssize(values), graph::DType::f32, values.data());
    return values;
  };
  made->a = read(target.a, target.a_dims);
  made->b = read(target.b, target.b_dims);
  last_ = made;
  return made;
}

void AdapterWeights::add_to(std::string_view weight, int64_t first, int64_t count,
                            double* elements) const {
  const LoraTarget& target = *targets_.find(weight)->second;
  const std::shared_ptr<const Factors> factors = factors_of(target);
  const int64_t r = target.b_dims.back();
  const int64_t experts = target.expert ? static_cast<int64_t>(target.b_dims[0]) : 1;
  const int64_t out = std::ssize(factors->b) / r / experts;
  const auto parts = static_cast<int64_t>(target.parts.size());
  const int64_t in = std::ssize(factors->a) / r / experts / parts;
  for (int64_t done = 0; done < count;) {
    // A row of the weight, or the part of it that is asked for.
    const int64_t row = (first + done) / in;
    const int64_t column = (first + done) % in;
    const int64_t n = std::min(in - column, count - done);
    const int64_t expert = row / out;
    const int64_t part = row % out / (out / parts);
    const int32_t module = target.parts[static_cast<size_t>(part)];
    if (module != graph::kNone) {
      const models::LoraModule& made = plan_.modules[static_cast<size_t>(module)];
      const float* const b = factors->b.data() + row * r;
      const float* const a = factors->a.data() + (expert * parts + part) * r * in + column;
      for (int64_t k = 0; k < made.r; ++k) {
        const double factor = made.scale * static_cast<double>(b[k]);
        for (int64_t i = 0; i < n; ++i) {
          elements[done + i] += factor * static_cast<double>(a[k * in + i]);
        }
      }
    }
    done += n;
  }
}

}  // namespace hocket::checkpoint
