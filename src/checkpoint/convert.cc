// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/convert.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/model_files.h"
#include "checkpoint/names.h"
#include "gguf/writer.h"

namespace hocket::checkpoint {
namespace {

/// general.file_type of a file with matrices of a type.
int64_t file_type(gguf::ElementType type) {
  switch (type) {
    case gguf::ElementType::f32:
      return 0;
    case gguf::ElementType::f16:
      return 1;
    case gguf::ElementType::q8_0:
      return 7;
    case gguf::ElementType::bf16:
      return 32;
    default:
      break;
  }
  HOCKET_CHECK(false, "files of {}", gguf::format_of(type).name);
  return 0;
}

const GgufArchitecture& architecture_for(const models::ModelConfig& config,
                                         const std::string& where) {
  if (const GgufArchitecture* architecture = architecture_of(config.family)) return *architecture;
  fail(where, "models of family {} are not written as GGUF; expected {}", config.family,
       join(gguf_families(), " or "));
}

/// Adds general.* and the keys of the architecture.
class MetadataWriter {
 public:
  MetadataWriter(const GgufArchitecture& architecture, gguf::Metadata& out)
      : prefix_(std::string(architecture.name) + "."), out_(out) {}
  MetadataWriter& integer(const char* key, int64_t value) {
    out_.add(prefix_ + key, gguf::Value::of_u32(value));
    return *this;
  }
  MetadataWriter& number(const char* key, double value) {
    out_.add(prefix_ + key, gguf::Value::of_f32(value));
    return *this;
  }
  MetadataWriter& string(const char* key, const char* value) {
    out_.add(prefix_ + key, gguf::Value::of_string(value));
    return *this;
  }

 private:
  std::string prefix_;
  gguf::Metadata& out_;
};

/// Places of one GGUF tensor's elements in parameters.
struct Source {
  std::string param;
  int64_t offset = 0;
};

/// Tensor of a GGUF file: one Hugging Face tensor, or those of all experts in order.
struct TensorPlan {
  GgufName name;
  graph::Dims dims;  ///< of a source
  std::vector<Source> sources;
};

/// Throws Error for a model that GGUF can say, and that llama.cpp does not open.
void refuse_unopened(const GgufArchitecture& architecture, const models::ModelConfig& config,
                     const std::string& where) {
  const bool biases = config.form.o_bias || config.form.mlp_bias;
  if (biases && std::string_view(architecture.name) != "llama") {
    fail(where,
         "linear layers have biases, with which llama.cpp does not open a file of architecture {}; "
         "expected attention_bias: false",
         architecture.name);
  }
  if (config.family == "olmoe" && config.num_kv_heads != config.num_heads) {
    fail(where,
         "num_key_value_heads is {}, with which llama.cpp does not open an olmoe; expected {}, as "
         "many as num_attention_heads",
         config.num_kv_heads, config.num_heads);
  }
}

int64_t product(const graph::Dims& dims) {
  int64_t elements = 1;
  for (const int64_t dim : dims) {
    elements *= dim;
  }
  return elements;
}

/// Reads elements of a GGUF tensor: parts of sources one after the other, rows of heads in pairs.
void read_tensor(const ModelSource& model, const TensorPlan& plan, int64_t first, int64_t count,
                 float* numbers) {
  const GgufPlacement& placement = plan.name.placement;
  const int64_t elements = product(plan.dims);
  const int64_t columns = elements / plan.dims[0];
  float* out = numbers;
  for (int64_t at = first; at < first + count;) {
    const Source& source = plan.sources[static_cast<size_t>(at / elements)];
    const int64_t in_source = at % elements;
    int64_t from = in_source, now = std::min(elements - in_source, first + count - at);
    if (placement.pairs_rows) {
      const int64_t column = in_source % columns;
      now = std::min(columns - column, now);
      from = unpaired_row(in_source / columns, model.config.head_dim) * columns + column;
    }
    model.read(source.param, source.offset + from, now, graph::DType::f32, out);
    out += now;
    at += now;
  }
  if (placement.offset != 0) {
    std::for_each(numbers, out, [&](float& number) { number += placement.offset; });
  }
}

std::vector<TensorPlan> plan_tensors(const models::ModelConfig& config,
                                     const GgufArchitecture& architecture,
                                     const std::string& where) {
  std::vector<TensorPlan> plans;
  std::map<std::string, size_t> by_name;
  for (const models::ParamWeights& param : models::weight_map(config)) {
    for (const models::WeightSlice& slice : param.forms[0]) {
      const auto name = gguf_name_of(slice.name, architecture);
      if (!name) {
        fail(where, "tensor {} has no name in a GGUF file of architecture {}", quote(slice.name),
             architecture.name);
      }
      const auto [at, fresh] = by_name.emplace(name->name, plans.size());
      if (fresh) {
        plans.push_back({*name, slice.dims, {}});
      }
      TensorPlan& plan = plans[at->second];
      HOCKET_CHECK(
          plan.dims == slice.dims && std::max<int64_t>(name->expert, 0) == std::ssize(plan.sources),
          "{}: expert {} after {}", name->name, name->expert, plan.sources.size());
      plan.sources.push_back({param.param, slice.offset});
    }
  }
  return plans;
}

/// Vectors and routers are small, and sums depend on them.
bool is_small(const TensorPlan& plan) {
  return plan.dims.size() < 2 || plan.name.name.ends_with("ffn_gate_inp.weight");
}

gguf::ElementType element_type(graph::DType dtype) {
  switch (dtype) {
    case graph::DType::bf16:
      return gguf::ElementType::bf16;
    case graph::DType::f16:
      return gguf::ElementType::f16;
    default:
      return gguf::ElementType::f32;
  }
}

/// Type in which a tensor came in.
gguf::ElementType type_of(const ModelSource& model, const TensorPlan& plan) {
  const auto type = [&](const Source& source) {
    return model.dtype(source.param, source.offset, product(plan.dims));
  };
  graph::DType dtype = type(plan.sources[0]);
  for (const Source& source : plan.sources) {
    dtype = common_type(dtype, type(source));
  }
  return element_type(dtype);
}

std::string small_letters(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

/// Throws Error, in the name of `where`, unless the file has the model's configuration and every
/// one of its tensors.
void expect_model(const std::string& path, const models::ModelConfig& config,
                  const std::string& where) {
  const models::ModelConfig back = read_model_config(path);
  const auto values = [](const models::ModelConfig& model) {
    nlohmann::ordered_json all = models::values_of(model);
    // Files do not have these: how a model was trained, and special tokens, which are the
    // tokenizer's.
    for (const char* key : {"initializer_range", "router_aux_loss_coef", "bos_token_id",
                            "pad_token_id", "eos_token_id"}) {
      all.erase(key);
    }
    return all;
  };
  nlohmann::ordered_json want = values(config);
  const nlohmann::ordered_json got = values(back);
  if (config.family == "mistral") {
    want["model_type"] = "llama";  // which computes the same: a window would be refused below
  }
  for (const auto& [key, value] : want.items()) {
    if (got.at(key) != value) {
      fail(where, "a GGUF file cannot say that {} is {}: it would be read as {}", key, value.dump(),
           got.at(key).dump());
    }
  }
  const ModelWeights matched(path, back);
}

void add_scaling(const models::Rope& rope, const std::string& where, MetadataWriter& keys) {
  if (rope.scaling == "linear") {
    keys.string("rope.scaling.type", "linear").number("rope.scaling.factor", rope.factor);
  } else if (rope.scaling == "yarn") {
    keys.string("rope.scaling.type", "yarn")
        .number("rope.scaling.factor", rope.factor)
        .integer("rope.scaling.original_context_length",
                 static_cast<int64_t>(rope.original_max_position));
    constexpr double kFast = 32, kSlow = 1;  // llama.cpp's, without the keys
    if (rope.beta_fast != kFast || rope.beta_slow != kSlow) {
      keys.number("rope.scaling.yarn_beta_fast", rope.beta_fast)
          .number("rope.scaling.yarn_beta_slow", rope.beta_slow);
    }
  } else if (rope.scaling != "default" && rope.scaling != "llama3") {
    fail(where,
         "rope_scaling of type {} is not written as GGUF; expected default, linear, llama3 or yarn",
         rope.scaling);
  }
}

void add_gemma(const models::ModelConfig& config, const std::string& where, MetadataWriter& keys) {
  const std::vector<int64_t>& windows = config.windows;
  const int64_t window = *std::max_element(windows.begin(), windows.end());
  if (window == 0) fail(where, "no layer has a window; expected one of a Gemma 3 as GGUF");
  keys.integer("attention.sliding_window", window);
  // llama.cpp's pattern is a number of layers; the last one has no window.
  constexpr int64_t kUsual = 6;
  const auto full = std::find(windows.begin(), windows.end(), 0);
  const int64_t every = full == windows.end() ? 0 : full - windows.begin() + 1;
  for (size_t layer = 0; layer < windows.size(); ++layer) {
    const bool slides = every == 0 || (static_cast<int64_t>(layer) + 1) % every != 0;
    if (slides != (windows[layer] > 0)) {
      fail(where,
           "layer {} breaks the pattern of windows, which GGUF cannot say; expected one layer "
           "without a window in every {}",
           layer, every);
    }
  }
  const bool same = every == kUsual || (every == 0 && std::ssize(windows) < kUsual);
  if (!same) {
    keys.integer("attention.sliding_window_pattern", every);
  }
  constexpr double kLocalTheta = 10000;
  if (config.window_rope && config.window_rope->theta != kLocalTheta) {
    keys.number("rope.freq_base_swa", config.window_rope->theta);
  }
  if (config.form.logits_softcap > 0) {
    keys.number("final_logit_softcapping", config.form.logits_softcap);
  }
}

const char* torch_name_of(graph::DType dtype) {
  switch (dtype) {
    case graph::DType::f64:
      return "float64";
    case graph::DType::bf16:
      return "bfloat16";
    case graph::DType::f16:
      return "float16";
    default:
      return "float32";
  }
}

}  // namespace

ModelSource source_of(const ModelWeights& weights, const models::ModelConfig& config) {
  return {config,
          [&weights](const std::string& param, int64_t first, int64_t count) {
            return weights.dtype(param, first, count);
          },
          [&weights](const std::string& param, int64_t first, int64_t count, graph::DType dtype,
                     void* to) { weights.load_range(param, first, count, dtype, to); }};
}

std::string Written::types() const {
  std::vector<std::pair<int64_t, std::string>> list;
  for (const auto& [type, count] : elements) {
    list.emplace_back(-count, type);
  }
  std::sort(list.begin(), list.end());
  std::vector<std::string> names;
  for (auto& [count, type] : list) {
    names.push_back(std::move(type));
  }
  return join(names, ", ");
}

gguf::ElementType gguf_type(const ModelSource& model, std::optional<gguf::ElementType> type) {
  if (type) return *type;
  std::map<gguf::ElementType, int64_t> elements;
  for (const models::ParamWeights& param : models::weight_map(model.config)) {
    if (param.dims.size() > 1) {
      const int64_t count = product(param.dims);
      elements[element_type(model.dtype(param.param, 0, count))] += count;
    }
  }
  const auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
  return std::max_element(elements.begin(), elements.end(), fewer)->first;
}

gguf::Metadata gguf_metadata(const models::ModelConfig& config, gguf::ElementType type,
                             const std::string& where) {
  const GgufArchitecture& architecture = architecture_for(config, where);
  refuse_unopened(architecture, config, where);
  gguf::Metadata out(where);
  out.add("general.architecture", gguf::Value::of_string(architecture.name));
  out.add("general.type", gguf::Value::of_string("model"));
  out.add("general.file_type", gguf::Value::of_u32(file_type(type)));
  out.add("general.quantization_version", gguf::Value::of_u32(2));
  MetadataWriter keys(architecture, out);
  keys.integer("block_count", config.num_layers)
      .integer("context_length", config.max_position)
      .integer("embedding_length", config.hidden_size)
      .integer("feed_forward_length", config.intermediate_size)
      .integer("attention.head_count", config.num_heads)
      .integer("attention.head_count_kv", config.num_kv_heads)
      .integer("attention.key_length", config.head_dim)
      .integer("attention.value_length", config.head_dim)
      .number("attention.layer_norm_rms_epsilon", config.rms_norm_eps)
      .integer("vocab_size", config.vocab_size)
      .integer("rope.dimension_count", config.head_dim)
      .number("rope.freq_base", config.rope.theta);
  add_scaling(config.rope, where, keys);
  if (architecture.experts) {
    keys.integer("expert_count", config.num_experts).integer("expert_used_count", config.top_k);
    if (config.family == "qwen3_moe") {
      keys.integer("expert_feed_forward_length", config.moe_intermediate_size);
    }
  }
  if (config.family == "gemma3_text") {
    add_gemma(config, where, keys);
  }
  return out;
}

Written export_gguf(const ModelSource& model, std::optional<gguf::ElementType> type,
                    const gguf::Metadata& metadata, const std::string& path) {
  const std::string& where = metadata.where();
  const models::ModelConfig& config = model.config;
  const std::vector<TensorPlan> plans =
      plan_tensors(config, architecture_for(config, where), where);
  std::vector<gguf::OutputTensor> tensors;
  Written written;
  for (const TensorPlan& plan : plans) {
    gguf::OutputTensor tensor{plan.name.name, gguf::ElementType::f32, plan.dims,
                              [&](int64_t first, int64_t count, float* numbers) {
                                read_tensor(model, plan, first, count, numbers);
                              }};
    if (!is_small(plan)) {
      tensor.type = type ? *type : type_of(model, plan);
    }
    if (plan.name.expert >= 0) {
      tensor.dims.insert(tensor.dims.begin(), std::ssize(plan.sources));
    }
    const gguf::BlockFormat& format = gguf::format_of(tensor.type);
    if (const int64_t row = plan.dims.back(); row % format.elements != 0) {
      fail(where, "tensor {} has rows of {} elements; expected a multiple of {} for {}; try f16",
           quote(tensor.name), row, format.elements, format.name);
    }
    written.elements[small_letters(format.name)] += product(tensor.dims);
    tensors.push_back(std::move(tensor));
  }
  const std::vector<float> factors = rope_factors(config.rope, config.head_dim);
  if (config.rope.scaling == "llama3") {
    tensors.push_back({kRopeFactors,
                       gguf::ElementType::f32,
                       {std::ssize(factors)},
                       [&](int64_t first, int64_t count, float* numbers) {
                         std::copy_n(factors.begin() + first, count, numbers);
                       }});
  }
  const std::string unnamed = temporary_name(path, ::getpid());
  try {
    written.bytes = gguf::save_gguf(unnamed, metadata, tensors);
    expect_model(unnamed, config, where);
    rename_durable(unnamed, path);
    return written;
  } catch (...) {
    remove_file(unnamed);
    throw;
  }
}

namespace {

/// Types of the tensors of a folder by name. A tensor of several parameters gets one that holds
/// all.
std::map<std::string, graph::DType> folder_types(const ModelSource& model,
                                                 std::optional<graph::DType> dtype,
                                                 const std::vector<models::ParamWeights>& params) {
  std::map<std::string, graph::DType> types;
  for (const models::ParamWeights& param : params) {
    for (const models::WeightSlice& slice : param.forms[0]) {
      const graph::DType type =
          dtype ? *dtype : model.dtype(param.param, slice.offset, slice.numel());
      const auto [at, fresh] = types.emplace(slice.name, type);
      if (!fresh) {
        at->second = common_type(at->second, type);
      }
    }
  }
  return types;
}

}  // namespace

Written export_folder(const ModelSource& model, std::optional<graph::DType> dtype,
                      const std::map<std::string, std::string>& files, const std::string& folder) {
  if (file_exists(folder)) fail(folder, "is there already; expected a new folder");
  const models::ModelConfig& config = model.config;
  std::vector<SlicedParameter> params;
  Written written;
  const std::vector<models::ParamWeights> map = models::weight_map(config);
  const std::map<std::string, graph::DType> types = folder_types(model, dtype, map);
  for (const models::ParamWeights& param : map) {
    for (const models::WeightSlice& slice : param.forms[0]) {
      const graph::DType type = types.at(slice.name);
      NamedTensor whole{param.param, {type, param.dims}};
      whole.read = [&model, name = param.param, type](int64_t first, int64_t count, void* to) {
        model.read(name, first, count, type, to);
      };
      written.bytes += slice.numel() * graph::size_of(type);
      written.elements[graph::to_string(type)] += slice.numel();
      params.push_back({std::move(whole), {slice}});
    }
  }
  const std::vector<NamedTensor> tensors = to_stored(params);
  const std::string types_text = written.types();
  const graph::DType most = graph::parse_dtype(types_text.substr(0, types_text.find(',')));
  const std::string unnamed = temporary_name(folder, ::getpid());
  try {
    make_dirs(unnamed);
    for (const auto& [name, text] : files) {
      write_file_atomic(join_path(unnamed, name), text);
    }
    write_file_atomic(join_path(unnamed, kConfigFile),
                      models::config_json(config, torch_name_of(most)));
    if (!files.contains(kGenerationFile)) {
      write_file_atomic(join_path(unnamed, kGenerationFile),
                        models::generation_config_json(config));
    }
    save_safetensors(join_path(unnamed, kModelFile), tensors);
    rename_durable(unnamed, folder);
  } catch (...) {
    remove_tree(unnamed);
    throw;
  }
  return written;
}

}  // namespace hocket::checkpoint
