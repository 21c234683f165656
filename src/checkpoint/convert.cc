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
  std::vector<std::string> families;
  for (const std::string& name : architecture_names()) {
    families.push_back(architecture_named(name, where).family);
  }
  fail(where, "models of family {} are not written as GGUF; expected {}", config.family,
       join(families, " or "));
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

/// Reads elements of a GGUF tensor: parts of sources one after the other, rows of heads in pairs.
void read_tensor(const ModelWeights& weights, const TensorPlan& plan, int64_t head_dim,
                 int64_t first, int64_t count, float* numbers) {
  int64_t elements = 1;
  for (const int64_t dim : plan.dims) {
    elements *= dim;
  }
  const int64_t columns = elements / plan.dims[0];
  for (int64_t at = first; at < first + count;) {
    const Source& source = plan.sources[static_cast<size_t>(at / elements)];
    const int64_t in_source = at % elements;
    int64_t from = in_source, now = std::min(elements - in_source, first + count - at);
    if (plan.name.pairs_rows) {
      const int64_t column = in_source % columns;
      now = std::min(columns - column, now);
      from = unpaired_row(in_source / columns, head_dim) * columns + column;
    }
    weights.load_range(source.param, source.offset + from, now, graph::DType::f32, numbers);
    numbers += now;
    at += now;
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
gguf::ElementType stored_as(const TensorPlan& plan, gguf::ElementType type) {
  const bool small = plan.dims.size() < 2 || plan.name.name.ends_with("ffn_gate_inp.weight");
  return small ? gguf::ElementType::f32 : type;
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
  const nlohmann::ordered_json want = values(config), got = values(back);
  for (const auto& [key, value] : want.items()) {
    if (got.at(key) != value) {
      fail(where, "a GGUF file cannot say that {} is {}: it would be read as {}", key, value.dump(),
           got.at(key).dump());
    }
  }
  const ModelWeights matched(path, back);
}

const char* torch_name_of(graph::DType dtype) {
  switch (dtype) {
    case graph::DType::bf16:
      return "bfloat16";
    case graph::DType::f16:
      return "float16";
    default:
      return "float32";
  }
}

}  // namespace

gguf::Metadata gguf_metadata(const models::ModelConfig& config, gguf::ElementType type,
                             const std::string& where) {
  const GgufArchitecture& architecture = architecture_for(config, where);
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
  if (config.rope.scaling == "linear") {
    keys.string("rope.scaling.type", "linear").number("rope.scaling.factor", config.rope.factor);
  } else if (config.rope.scaling != "default" && config.rope.scaling != "llama3") {
    fail(where,
         "rope_scaling of type {} is not written as GGUF; expected default, linear or llama3",
         config.rope.scaling);
  }
  if (architecture.experts) {
    keys.integer("expert_count", config.num_experts)
        .integer("expert_used_count", config.top_k)
        .integer("expert_feed_forward_length", config.moe_intermediate_size);
  }
  return out;
}

int64_t export_gguf(const ModelWeights& weights, const models::ModelConfig& config,
                    gguf::ElementType type, const gguf::Metadata& metadata,
                    const std::string& path) {
  const std::string& where = metadata.where();
  const std::vector<TensorPlan> plans =
      plan_tensors(config, architecture_for(config, where), where);
  std::vector<gguf::OutputTensor> tensors;
  for (const TensorPlan& plan : plans) {
    gguf::OutputTensor tensor{plan.name.name, stored_as(plan, type), plan.dims,
                              [&](int64_t first, int64_t count, float* numbers) {
                                read_tensor(weights, plan, config.head_dim, first, count, numbers);
                              }};
    if (plan.name.expert >= 0) {
      tensor.dims.insert(tensor.dims.begin(), std::ssize(plan.sources));
    }
    const gguf::BlockFormat& format = gguf::format_of(tensor.type);
    if (const int64_t row = plan.dims.back(); row % format.elements != 0) {
      fail(where, "tensor {} has rows of {} elements; expected a multiple of {} for {}; try f16",
           quote(tensor.name), row, format.elements, format.name);
    }
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
    const int64_t bytes = gguf::save_gguf(unnamed, metadata, tensors);
    expect_model(unnamed, config, where);
    rename_durable(unnamed, path);
    return bytes;
  } catch (...) {
    remove_file(unnamed);
    throw;
  }
}

int64_t export_folder(const ModelWeights& weights, const models::ModelConfig& config,
                      graph::DType dtype, const std::map<std::string, std::string>& files,
                      const std::string& folder) {
  if (file_exists(folder)) fail(folder, "is there already; expected a new folder");
  std::vector<SlicedParameter> params;
  int64_t bytes = 0;
  for (const models::ParamWeights& param : models::weight_map(config)) {
    NamedTensor whole{param.param, {dtype, param.dims}};
    whole.read = [&weights, name = param.param, dtype](int64_t first, int64_t count, void* to) {
      weights.load_range(name, first, count, dtype, to);
    };
    bytes += whole.type.bytes();
    params.push_back({std::move(whole), param.forms[0]});
  }
  const std::vector<NamedTensor> tensors = to_stored(params);
  const std::string unnamed = temporary_name(folder, ::getpid());
  try {
    make_dirs(unnamed);
    for (const auto& [name, text] : files) {
      write_file_atomic(join_path(unnamed, name), text);
    }
    write_file_atomic(join_path(unnamed, kConfigFile),
                      models::config_json(config, torch_name_of(dtype)));
    write_file_atomic(join_path(unnamed, "generation_config.json"),
                      models::generation_config_json(config));
    save_safetensors(join_path(unnamed, kModelFile), tensors);
    rename_durable(unnamed, folder);
  } catch (...) {
    remove_tree(unnamed);
    throw;
  }
  return bytes;
}

}  // namespace hocket::checkpoint
