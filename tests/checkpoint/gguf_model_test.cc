// SPDX-License-Identifier: Apache-2.0
// Models in GGUF files: written and read again, the order of rows, and metadata that are refused.
#include "checkpoint/gguf_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/convert.h"
#include "checkpoint/resolve.h"
#include "gguf/writer.h"
#include "tests/checkpoint/checkpoint_util.h"

namespace hocket::checkpoint {
namespace {

using gguf::ElementType;
using gguf::Value;
using graph::DType;
using models::ModelConfig;

ModelConfig changed(const ModelConfig& config, const nlohmann::json& keys) {
  nlohmann::json json = nlohmann::json::parse(config.json);
  json.update(keys);
  return models::parse_config(json.dump(), "test");
}

/// A model folder and its weights.
struct Folder {
  explicit Folder(const ModelConfig& model_config) : config(model_config) {
    params = random_params(config, DType::f32, 3, storage);
    write_file_atomic(folder / "config.json", models::config_json(config, "float32"));
    save_safetensors(folder / "model.safetensors", to_stored(config, params));
  }
  /// Writes it as a GGUF file; returns the path.
  std::string exported(std::optional<ElementType> type = ElementType::f32) const {
    const std::string path = folder / "model.gguf";
    const ModelWeights weights(folder.path(), config);
    const ModelSource source = source_of(weights, config);
    export_gguf(source, type, gguf_metadata(config, gguf_type(source, type), folder.path()), path);
    return path;
  }

  TempFolder folder;
  ModelConfig config;
  std::vector<std::vector<char>> storage;
  std::vector<NamedTensor> params;
};

std::vector<ModelConfig> writable_models() {
  const nlohmann::json llama3 = {{"rope_theta", 500000.0},
                                 {"rope_scaling",
                                  {{"rope_type", "llama3"},
                                   {"factor", 8.0},
                                   {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 4.0},
                                   {"original_max_position_embeddings", 8192}}}};
  const ModelConfig llama = small_config("llama"), moe = small_config("qwen3_moe");
  const nlohmann::json no_window = {{"use_sliding_window", false}};
  const nlohmann::json yarn = {
      {"rope_scaling",
       {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}}}};
  const nlohmann::json gemma = {{"query_pre_attn_scalar", 10}, {"final_logit_softcapping", 30.0}};
  return {changed(llama, {{"attention_bias", true}, {"mlp_bias", true}}),
          changed(small_config("mistral"), {{"sliding_window", nullptr}}),
          changed(small_config("mixtral"), {{"sliding_window", nullptr}}),
          changed(small_config("qwen2", true), no_window),
          changed(changed(small_config("qwen2"), no_window), yarn),
          changed(small_config("qwen3"), no_window),
          changed(small_config("olmoe"), {{"num_key_value_heads", 4}}),
          changed(small_config("gemma3_text", true), gemma),
          llama,
          small_config("llama", true),
          changed(llama, {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.5}}},
                          {"rms_norm_eps", 1e-5}}),
          changed(llama, llama3),
          changed(moe, {{"mlp_only_layers", nlohmann::json::array()}, {"norm_topk_prob", true}})};
}

TEST(GgufModel, WrittenModelsAreReadAgain) {
  for (const ModelConfig& config : writable_models()) {
    const Folder model(config);
    const std::string path = model.exported();
    const ModelConfig back = read_model_config(path);
    EXPECT_EQ(back.rope, config.rope);
    EXPECT_EQ(back.rms_norm_eps, config.rms_norm_eps);
    EXPECT_EQ(back.tie_word_embeddings, config.tie_word_embeddings);
    EXPECT_EQ(back.form, config.form);
    EXPECT_EQ(back.windows, config.windows);
    // Adding one to the norms of a Gemma rounds them.
    const bool rounds = config.family == "gemma3_text";
    const ModelWeights weights(path, back);
    for (const NamedTensor& param : model.params) {
      std::vector<char> bytes(static_cast<size_t>(param.type.bytes()));
      weights.load_range(param.name, 0, param.type.numel(), DType::f32, bytes.data());
      if (rounds && param.name.ends_with("norm.weight")) {
        for (int64_t i = 0; i < param.type.numel(); ++i) {
          const float want = static_cast<const float*>(param.data)[i];
          EXPECT_NEAR(reinterpret_cast<const float*>(bytes.data())[i], want, 3e-7) << param.name;
        }
        continue;
      }
      EXPECT_EQ(0, std::memcmp(bytes.data(), param.data, bytes.size())) << param.name;
      // Any part of it.
      const int64_t first = param.type.numel() / 3, count = param.type.numel() / 2;
      std::vector<float> part(static_cast<size_t>(count));
      weights.load_range(param.name, first, count, DType::f32, part.data());
      EXPECT_EQ(0,
                std::memcmp(part.data(), bytes.data() + first * 4, static_cast<size_t>(count) * 4))
          << param.name;
    }
  }
}

TEST(GgufModel, RowsOfQueriesLieInPairs) {
  const Folder model(small_config("llama"));
  const gguf::File file(model.exported());
  const gguf::StoredTensor& stored = *file.find("blk.1.attn_q.weight");
  EXPECT_EQ(graph::sizes(stored.dims), (std::vector<int64_t>{40, 24}));
  std::vector<float> theirs(40 * 24), ours(40 * 24);
  file.read(stored, 0, 40 * 24, DType::f32, theirs.data());
  ModelWeights(model.folder.path(), model.config)
      .load_range("model.layers.1.self_attn.q_proj.weight", 0, 40 * 24, DType::f32, ours.data());
  for (int head = 0; head < 4; ++head) {
    for (int pair = 0; pair < 5; ++pair) {
      for (int half = 0; half < 2; ++half) {
        const int their_row = head * 10 + 2 * pair + half, our_row = head * 10 + half * 5 + pair;
        EXPECT_EQ(paired_row(our_row, 10), their_row);
        EXPECT_EQ(unpaired_row(their_row, 10), our_row);
        EXPECT_EQ(theirs[their_row * 24 + 7], ours[our_row * 24 + 7]);
      }
    }
  }
  // Values and the output are in order.
  std::vector<float> values(20 * 24), our_values(20 * 24);
  file.read(*file.find("blk.0.attn_v.weight"), 0, 20 * 24, DType::f32, values.data());
  ModelWeights(model.folder.path(), model.config)
      .load_range("model.layers.0.self_attn.v_proj.weight", 0, 20 * 24, DType::f32,
                  our_values.data());
  EXPECT_EQ(values, our_values);
}

TEST(GgufModel, AddsOneToTheNormsOfGemma) {
  const Folder model(
      changed(small_config("gemma3_text"), {{"query_pre_attn_scalar", 10}, {"head_dim", 10}}));
  const gguf::File file(model.exported());
  const ModelWeights weights(model.folder.path(), model.config);
  for (const auto& [theirs, ours] :
       {std::pair{"blk.1.attn_norm.weight", "model.layers.1.input_layernorm.weight"},
        {"blk.1.post_ffw_norm.weight", "model.layers.1.post_feedforward_layernorm.weight"},
        {"blk.0.attn_k_norm.weight", "model.layers.0.self_attn.k_norm.weight"},
        {"output_norm.weight", "model.norm.weight"}}) {
    const gguf::StoredTensor* stored = file.find(theirs);
    ASSERT_NE(stored, nullptr) << theirs;
    std::vector<float> got(static_cast<size_t>(stored->numel)), want(got.size());
    file.read(*stored, 0, stored->numel, DType::f32, got.data());
    weights.load_range(ours, 0, stored->numel, DType::f32, want.data());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], want[i] + 1) << theirs;
    }
  }
}

TEST(GgufModel, ExpertsMayHaveATensorEach) {
  const Folder model(changed(small_config("mixtral"), {{"sliding_window", nullptr}}));
  const gguf::File file(model.exported());
  std::vector<gguf::OutputTensor> tensors;
  for (const gguf::StoredTensor& tensor : file.tensors()) {
    const size_t at = tensor.name.find("_exps");
    const int64_t pieces = at == tensor.name.npos ? 1 : int64_t{tensor.dims[0]};
    for (int64_t piece = 0; piece < pieces; ++piece) {
      std::string name = tensor.name;
      graph::Dims dims = tensor.dims;
      if (at != name.npos) {
        name.replace(at, 5, fmt::format(".{}", piece));
        dims = graph::Dims(dims.begin() + 1, dims.end());
      }
      tensors.push_back(
          {name, ElementType::f32, dims,
           [&, begin = piece * tensor.numel / pieces](int64_t first, int64_t count, float* to) {
             file.read(tensor, begin + first, count, DType::f32, to);
           }});
    }
  }
  const std::string older = model.folder / "older.gguf";
  gguf::save_gguf(older, file.metadata(), tensors);
  const ModelWeights weights(older, read_model_config(older));
  for (const NamedTensor& param : model.params) {
    std::vector<char> bytes(static_cast<size_t>(param.type.bytes()));
    weights.load_range(param.name, 0, param.type.numel(), DType::f32, bytes.data());
    EXPECT_EQ(0, std::memcmp(bytes.data(), param.data, bytes.size())) << param.name;
  }
}

TEST(GgufModel, OtherTypesAreRoundedOnce) {
  const Folder model(changed(small_config("llama"),
                             {{"hidden_size", 32}, {"intermediate_size", 64}, {"head_dim", 8}}));
  for (const auto& [type, step] : {std::pair{ElementType::f16, 0x1p-11},
                                   {ElementType::bf16, 0x1p-8},
                                   {ElementType::q8_0, 0.5 / 127 * 1.01}}) {
    const std::string path = model.exported(type);
    const ModelWeights weights(path, model.config);
    for (const NamedTensor& param : model.params) {
      const auto count = static_cast<size_t>(param.type.numel());
      std::vector<float> got(count);
      weights.load_range(param.name, 0, param.type.numel(), DType::f32, got.data());
      const auto* want = static_cast<const float*>(param.data);
      for (size_t i = 0; i < count; ++i) {
        ASSERT_NEAR(got[i], want[i], step * 4.5) << param.name;
        if (param.type.dims.size() == 1) {
          ASSERT_EQ(got[i], want[i]) << param.name;  // norms stay
        }
      }
    }
  }
}

TEST(GgufModel, RefusesModelsThatGgufCannotExpress) {
  const auto expect_refused = [](const ModelConfig& config, ElementType type,
                                 const std::string& part) {
    SCOPED_TRACE(part);
    const Folder model(config);
    const std::string text = error_of([&] { model.exported(type); });
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_EQ(list_dir(model.folder.path()).size(), 2u) << "a file was left behind";
  };
  expect_refused(small_config("gpt2"), ElementType::f32, "family gpt2");
  expect_refused(small_config("mistral"), ElementType::f32, "sliding_window is [4096,4096]");
  expect_refused(small_config("qwen3"), ElementType::f32, "sliding_window is");
  expect_refused(small_config("gemma3_text"), ElementType::f32, "attention scale is");
  expect_refused(
      changed(small_config("gemma3_text"),
              {{"num_hidden_layers", 4},
               {"layer_types",
                {"sliding_attention", "full_attention", "full_attention", "sliding_attention"}}}),
      ElementType::f32, "layer 2 breaks the pattern");
  expect_refused(
      changed(small_config("olmoe"), {{"norm_topk_prob", true}, {"num_key_value_heads", 4}}),
      ElementType::f32, "norm_topk_prob");
  expect_refused(small_config("olmoe"), ElementType::f32, "num_key_value_heads is 2");
  expect_refused(changed(small_config("qwen3"), {{"attention_bias", true}}), ElementType::f32,
                 "have biases");
  expect_refused(small_config("llama"), ElementType::q8_0, "rows of 24 elements");
  const ModelConfig moe = small_config("qwen3_moe");
  expect_refused(changed(moe, {{"norm_topk_prob", true}}), ElementType::f32, "layers with experts");
  expect_refused(
      changed(moe, {{"mlp_only_layers", nlohmann::json::array()}, {"norm_topk_prob", false}}),
      ElementType::f32, "norm_topk_prob");
  const nlohmann::json scaling = {{"rope_type", "llama3"},
                                  {"factor", 8.0},
                                  {"low_freq_factor", 2.0},
                                  {"high_freq_factor", 4.0},
                                  {"original_max_position_embeddings", 64}};
  expect_refused(changed(small_config("llama"), {{"rope_scaling", scaling}}), ElementType::f32,
                 "rope_freqs.weight");
}

using Edit = std::function<void(std::map<std::string, Value>&, std::vector<gguf::OutputTensor>&)>;

/// Returns the error of a small file with changes; "": there is none, and `rope` becomes the
/// file's.
std::string error_with(const Edit& edit, models::Rope* rope = nullptr) {
  const ModelConfig config = small_config("llama", true);
  std::map<std::string, Value> keys;
  const gguf::Metadata made = gguf_metadata(config, ElementType::f32, "test");
  for (const auto& [key, value] : made.entries()) {
    keys[key] = value;
  }
  std::vector<gguf::OutputTensor> tensors;
  const auto zeros = [](int64_t, int64_t count, float* to) { std::fill_n(to, count, 0.0f); };
  const std::string family = "llama", where = "test";
  const GgufArchitecture& llama = architecture_named(family, false, where);
  for (const models::ParamWeights& param : models::weight_map(config)) {
    for (const models::WeightSlice& slice : param.forms[0]) {
      tensors.push_back(
          {gguf_name_of(slice.name, llama)->name, ElementType::f32, slice.dims, zeros});
    }
  }
  edit(keys, tensors);
  gguf::Metadata metadata;
  for (auto& [key, value] : keys) {
    metadata.add(key, value);
  }
  const TempFolder folder;
  const std::string path = folder / "x.gguf";
  gguf::save_gguf(path, metadata, tensors);
  return error_of([&] {
    const ModelConfig read = read_model_config(path);
    const ModelWeights weights(path, read);
    if (rope != nullptr) {
      *rope = read.rope;
    }
  });
}

TEST(GgufModel, OtherModelsAreRefusedByName) {
  const auto expect = [](const Edit& edit, const std::string& part) {
    const std::string text = error_with(edit);
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
    EXPECT_NE(text.find("x.gguf"), std::string::npos) << text;
  };
  const auto key = [](const std::string& name, const Value& value) {
    return [=](auto& keys, auto&) { keys[name] = value; };
  };
  EXPECT_EQ(error_with([](auto&, auto&) {}), "");
  expect(key("general.architecture", Value::of_string("lama")), "the nearest is llama");
  expect(key("general.architecture", Value::of_string("falcon")), "'falcon', which is not");
  expect(key("general.architecture", Value::of_u32(1)), "expected a string");
  expect(key("general.type", Value::of_string("adapter")), "expected a model");
  expect(key("split.count", Value::of_u32(3)), "3 files");
  expect(key("llama.attention.scale", Value::of_f32(0.5)), "'llama.attention.scale' is not");
  expect(key("llama.attention.causal", Value::of_bool(false)), "causal attention");
  expect(key("llama.expert_count", Value::of_u32(8)), "'llama.expert_used_count' is missing");
  expect(key("general.architecture", Value::of_string("olmoe")), "has no experts");
  expect(key("llama.rope.scaling.attn_factor", Value::of_f32(2)), "expected 1");
  expect(key("llama.attention.head_count", Value::of_u32(0)), "1 or more");
  expect(key("llama.attention.head_count_kv", Value::of_i32s({2, 1})), "between layers");
  expect(key("llama.attention.value_length", Value::of_u32(12)), "length of keys");
  expect(key("llama.rope.dimension_count", Value::of_u32(4)), "all of a head turns");
  expect(key("llama.rope.scaling.type", Value::of_string("longrope")), "'longrope'");
  expect(key("llama.vocab_size", Value::of_u32(36)), "expected 37");
  expect(key("llama.block_count", Value::of_u32(3)), "missing: 'model.layers.2");
  expect(key("llama.embedding_length", Value::of_u32(28)), "has shape");
  // A name of the right length and ending that begins otherwise.
  expect(
      [](auto&, auto& tensors) {
        const auto norm = std::find_if(tensors.begin(), tensors.end(), [](const auto& tensor) {
          return tensor.name == "blk.1.attn_norm.weight";
        });
        norm->name = "abc.1.attn_norm.weight";
      },
      "'abc.1.attn_norm.weight' is not supported");
  expect([](auto& keys, auto&) { keys.erase("llama.block_count"); },
         "'llama.block_count' is missing");
  expect([](auto&, auto& tensors) { tensors.erase(tensors.begin()); }, "token_embd.weight");
  expect([](auto&, auto& tensors) { tensors.pop_back(); }, "missing: 'model.norm.weight'");
  expect([](auto&, auto& tensors) { tensors.back().name = "blk.0.attn_sinks.weight"; },
         "'blk.0.attn_sinks.weight' is not supported");
  expect([](auto&, auto& tensors) { tensors.back().name = "blk.0.attn_q.bias"; },
         "expected whole heads of 10 rows");
  const auto factors = [](int64_t count, float number) {
    return [=](auto&, auto& tensors) {
      tensors.push_back(
          {kRopeFactors, ElementType::f32, {count}, [=](int64_t, int64_t n, float* to) {
             std::fill_n(to, n, number);
           }});
    };
  };
  expect(factors(5, 3), "another scaling");
  expect(factors(4, 1), "4 elements; expected 5");
}

TEST(GgufModel, LinearScalingIsReadAsByLlamaCpp) {
  const auto rope_with = [](const std::vector<std::pair<std::string, Value>>& more) {
    models::Rope rope;
    const std::string error = error_with(
        [&](auto& keys, auto&) {
          for (const auto& [key, value] : more) {
            keys["llama.rope." + key] = value;
          }
        },
        &rope);
    EXPECT_EQ(error, "");
    return rope;
  };
  const Value four = Value::of_f32(4), two = Value::of_f32(2);
  const Value none = Value::of_string("none");
  // A factor without a type is linear; the older key counts where the newer one is absent.
  EXPECT_EQ(rope_with({{"scaling.factor", four}}).scaling, "linear");
  EXPECT_EQ(rope_with({{"scaling.factor", four}, {"scale_linear", two}}).factor, 4);
  EXPECT_EQ(rope_with({{"scale_linear", two}}).factor, 2);
  for (const char* key : {"scaling.factor", "scale_linear"}) {
    EXPECT_EQ(rope_with({{"scaling.type", none}, {key, four}}).scaling, "default") << key;
    EXPECT_EQ(rope_with({{key, Value::of_f32(0)}}).scaling, "default") << key;
  }
}

TEST(GgufModel, EveryStopTokenIsRead) {
  const Folder model(small_config("llama"));
  const ModelWeights weights(model.folder.path(), model.config);
  gguf::Metadata metadata = gguf_metadata(model.config, ElementType::f32, model.folder.path());
  metadata.add("tokenizer.ggml.eos_token_id", Value::of_u32(5));
  metadata.add("tokenizer.ggml.eot_token_id", Value::of_u32(6));
  metadata.add("tokenizer.ggml.eom_token_id", Value::of_u32(7));
  const std::string path = model.folder / "stops.gguf";
  export_gguf(source_of(weights, model.config), ElementType::f32, metadata, path);
  EXPECT_EQ(read_model_config(path).eos_token_ids, (std::vector<int64_t>{5, 6, 7}));
}

TEST(GgufModel, ResolvesFilesAndFolders) {
  const Folder model(small_config("llama"));
  const std::string path = model.exported();
  const ModelLocation at = resolve_model(path, Need::weights);
  EXPECT_EQ(at.folder, path);
  EXPECT_EQ(at.config_file, path);
  EXPECT_TRUE(at.has_weights);
  const TempFolder folder;
  write_file_atomic(folder / "a.gguf", read_file(path));
  EXPECT_EQ(resolve_model(folder.path(), Need::weights).folder, folder / "a.gguf");
  write_file_atomic(folder / "b.gguf", read_file(path));
  const std::string text = error_of([&] { resolve_model(folder.path(), Need::weights); });
  EXPECT_NE(text.find("2 GGUF files, a.gguf, b.gguf"), std::string::npos) << text;
  write_file_atomic(folder / "c", "GGU");
  EXPECT_NE(error_of([&] { resolve_model(folder / "c", Need::config); }).find("a GGUF file"),
            std::string::npos);
}

TEST(GgufModel, AFolderIsWrittenFromAFile) {
  const Folder model(writable_models().back());
  const std::string path = model.exported();
  const ModelConfig config = read_model_config(path);
  const std::string out = model.folder / "hf";
  const ModelWeights file(path, config);
  const Written written =
      export_folder(source_of(file, config), DType::f32, {{"tokenizer.json", "{}"}}, out);
  int64_t elements = 0;
  for (const NamedTensor& param : model.params) {
    elements += param.type.numel();
  }
  EXPECT_EQ(written.bytes, 4 * elements);
  EXPECT_EQ(read_file(out + "/tokenizer.json"), "{}");
  const ModelWeights weights(out, models::read_config(out));
  for (const NamedTensor& param : model.params) {
    std::vector<char> bytes(static_cast<size_t>(param.type.bytes()));
    weights.load_range(param.name, 0, param.type.numel(), DType::f32, bytes.data());
    EXPECT_EQ(0, std::memcmp(bytes.data(), param.data, bytes.size())) << param.name;
  }
  EXPECT_NE(error_of([&] {
              export_folder(source_of(file, config), DType::f32, {}, out);
            }).find("is there already"),
            std::string::npos);
}

}  // namespace
}  // namespace hocket::checkpoint
