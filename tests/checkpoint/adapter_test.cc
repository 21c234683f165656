// SPDX-License-Identifier: Apache-2.0
// Folders of adapters that PEFT wrote: their configuration, and experts as modules of
// transformers 4.
#include "checkpoint/adapter.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/file.h"
#include "base/rng.h"
#include "checkpoint/expert_modules.h"
#include "checkpoint/model_weights.h"
#include "checkpoint/resolve.h"
#include "tests/checkpoint/checkpoint_util.h"

namespace hocket::checkpoint {
namespace {

class AdapterFolder : public testing::Test {
 protected:
  /// Writes an adapter_config.json with more keys.
  void write_config(const std::string& keys) const {
    write_file_atomic(folder_ / kAdapterConfigFile,
                      R"({"peft_type": "LORA", "r": 2, "lora_alpha": 6)" + keys + "}");
  }
  std::string refusal() const {
    return error_of([&] { read_adapter_config(folder_.path()); });
  }
  /// Writes tensors of random numbers.
  void save_random(const std::map<std::string, graph::Dims>& shapes) const {
    Rng rng(5);
    std::map<std::string, std::vector<float>> values;
    std::vector<NamedTensor> tensors;
    for (const auto& [name, dims] : shapes) {
      std::vector<float>& numbers = values[name];
      for (int64_t i = 0; i < dims[0] * dims[1]; ++i) {
        numbers.push_back(static_cast<float>(rng.normal()));
      }
      tensors.push_back({name, {graph::DType::f32, dims}, numbers.data()});
    }
    save_safetensors(folder_ / kAdapterFile, tensors);
  }

  const TempFolder folder_;
};

TEST_F(AdapterFolder, RefusesInitialisationsThatChangeTheBaseWeights) {
  for (const std::string init :
       {"true", "false", "\"gaussian\"", "\"eva\"", "\"orthogonal\"", "\"mica\""}) {
    write_config(R"(, "eva_config": {"rho": 2.0}, "init_lora_weights": )" + init);
    EXPECT_EQ(refusal(), "") << init;
  }
  for (const std::string init :
       {"\"pissa\"", "\"pissa_niter_16\"", "\"olora\"", "\"loftq\"", "\"corda\"", "\"lora_ga\""}) {
    write_config(R"(, "init_lora_weights": )" + init);
    EXPECT_NE(refusal().find("init_lora_weights is " + init), std::string::npos) << init;
  }
}

TEST_F(AdapterFolder, NamesAConversionOfPickledTensors) {
  write_config(R"(, "target_modules": ["q_proj"])");
  write_file_atomic(folder_ / kPickledAdapterFile, "pickled");
  const models::ModelConfig config = small_config("llama");
  const auto refusal = [&] { return error_of([&] { AdapterWeights(folder_.path(), config); }); };
  EXPECT_NE(refusal().find("adapter_model.bin alone"), std::string::npos) << refusal();
  EXPECT_NE(refusal().find("torch.load('" + (folder_ / "adapter_model.bin") +
                           "', map_location='cpu', weights_only=True)"),
            std::string::npos);
  // The file is left aside where there is the other one.
  save_random({{"other", {1, 1}}});
  EXPECT_EQ(refusal().find("adapter_model.bin"), std::string::npos) << refusal();
}

TEST_F(AdapterFolder, SaysWhatAMissingBaseIs) {
  write_config(R"(, "base_model_name_or_path": "/runs/gone/checkpoints/step-000006")");
  const std::string said = error_of([&] { resolve_model(folder_.path(), Need::weights); });
  EXPECT_NE(said.find("no such file or folder"), std::string::npos) << said;
  EXPECT_NE(said.find("base of adapter " + folder_.path()), std::string::npos) << said;
  EXPECT_NE(said.find("(train.keep_last)"), std::string::npos) << said;
  EXPECT_NE(said.find("MODEL --adapter " + folder_.path()), std::string::npos) << said;
}

constexpr int64_t kExperts = 4, kWide = 12, kHidden = 24, kRank = 2;

/// Matrices of every expert's projections in layer 0 of small_config("qwen3_moe"), by name.
class ExpertMatrices {
 public:
  ExpertMatrices() {
    for (int64_t e = 0; e < kExperts; ++e) {
      for (const char* projection : {"gate_proj", "up_proj", "down_proj"}) {
        const bool down = projection == std::string("down_proj");
        add(name(e, projection, "A"), kRank, down ? kWide : kHidden);
        add(name(e, projection, "B"), down ? kHidden : kWide, kRank);
      }
    }
  }
  static std::string name(int64_t expert, const std::string& projection, const char* matrix) {
    return fmt::format("base_model.model.model.layers.0.mlp.experts.{}.{}.lora_{}.weight", expert,
                       projection, matrix);
  }
  void remove(const std::string& tensor) { matrices_.erase(tensor); }
  void save(const std::string& path) const {
    std::vector<NamedTensor> tensors;
    for (const auto& [tensor, matrix] : matrices_) {
      tensors.push_back(
          {tensor, {graph::DType::f32, {matrix.rows, matrix.columns}}, matrix.values.data()});
    }
    save_safetensors(path, tensors);
  }
  /// Returns an element of B A.
  double product(int64_t expert, const std::string& projection, int64_t row, int64_t column) const {
    const Matrix& a = matrices_.at(name(expert, projection, "A"));
    const Matrix& b = matrices_.at(name(expert, projection, "B"));
    double sum = 0;
    for (int64_t k = 0; k < kRank; ++k) {
      sum += double{b.values[static_cast<size_t>(row * kRank + k)]} *
             double{a.values[static_cast<size_t>(k * a.columns + column)]};
    }
    return sum;
  }

 private:
  struct Matrix {
    int64_t rows = 0, columns = 0;
    std::vector<float> values;
  };
  void add(const std::string& tensor, int64_t rows, int64_t columns) {
    Matrix& matrix = matrices_[tensor];
    matrix.rows = rows;
    matrix.columns = columns;
    for (int64_t i = 0; i < rows * columns; ++i) {
      matrix.values.push_back(static_cast<float>(rng_.normal()));
    }
  }

  std::map<std::string, Matrix> matrices_;
  Rng rng_{7};
};

TEST_F(AdapterFolder, ExpertsAsModulesAreMerged) {
  write_config(
      R"(, "target_modules": ["gate_proj", "up_proj", "down_proj"], "layers_to_transform": [0])");
  ExpertMatrices matrices;
  matrices.save(folder_ / kAdapterFile);
  const models::ModelConfig config = small_config("qwen3_moe");
  const AdapterWeights adapter(folder_.path(), config);
  ASSERT_EQ(adapter.plan().targets.size(), 2u);
  constexpr double kScale = 3;  // lora_alpha / r
  for (const models::LoraTarget& target : adapter.plan().targets) {
    const bool down = target.parts.size() == 1;
    const std::vector<std::string> projections =
        down ? std::vector<std::string>{"down_proj"}
             : std::vector<std::string>{"gate_proj", "up_proj"};
    const int64_t count = kExperts * std::ssize(projections) * kHidden * kWide;
    std::vector<double> got(static_cast<size_t>(count));
    adapter.add_to(target.weight, 0, count, got.data());
    size_t at = 0;
    for (int64_t e = 0; e < kExperts; ++e) {
      for (const std::string& projection : projections) {
        for (int64_t row = 0; row < (down ? kHidden : kWide); ++row) {
          for (int64_t column = 0; column < (down ? kWide : kHidden); ++column) {
            ASSERT_NEAR(got[at++], kScale * matrices.product(e, projection, row, column), 1e-5)
                << target.weight << " " << e << " " << row << " " << column;
          }
        }
      }
    }
  }
  const std::string lost = ExpertMatrices::name(3, "down_proj", "B");
  matrices.remove(lost);
  matrices.save(folder_ / kAdapterFile);
  const std::string said = error_of([&] { const AdapterWeights read(folder_.path(), config); });
  EXPECT_NE(said.find(lost + "' is missing"), std::string::npos) << said;
}

TEST_F(AdapterFolder, OneOfGateAndUpProjectionIsMerged) {
  write_config(R"(, "target_modules": ["gate_proj"], "modules_to_save": ["up_proj"])");
  const models::ModelConfig config = small_config("llama");
  const std::string base = folder_ / "base";
  make_dirs(base);
  std::vector<std::vector<char>> storage;
  save_safetensors(base + "/model.safetensors",
                   to_stored(config, random_params(config, graph::DType::f32, 3, storage)));
  std::map<std::string, graph::Dims> shapes;
  std::vector<models::ParamWeights> halves;
  for (const models::ParamWeights& param : models::weight_map(config)) {
    const models::WeightForm& form = param.forms[0];
    if (form.size() != 2) continue;
    halves.push_back(param);
    const std::string gate = models::kAdapterPrefix + form[0].name;
    const std::string module = gate.substr(0, gate.rfind('.'));
    shapes[module + ".lora_A.weight"] = {kRank, form[0].dims[1]};
    shapes[module + ".lora_B.weight"] = {form[0].dims[0], kRank};
    shapes[models::kAdapterPrefix + form[1].name] = form[1].dims;
  }
  ASSERT_FALSE(halves.empty());
  save_random(shapes);
  const ModelWeights plain(base, config);
  const ModelWeights merged(base, config, folder_.path());
  const AdapterWeights adapter(folder_.path(), config);
  for (const models::ParamWeights& param : halves) {
    const models::WeightSlice& up = param.forms[0][1];
    const auto count = static_cast<size_t>(2 * up.offset), half = count / 2;
    std::vector<double> want(count), got(count), part(count);
    plain.load_range(param.param, 0, std::ssize(want), graph::DType::f64, want.data());
    adapter.add_to(param.param, 0, std::ssize(want), want.data());
    const TensorFiles::Entry saved = adapter.file().find(models::kAdapterPrefix + up.name);
    saved.file->read(*saved.tensor, 0, up.offset, graph::DType::f64, want.data() + half);
    merged.load_range(param.param, 0, std::ssize(got), graph::DType::f64, got.data());
    EXPECT_EQ(got, want);
    // A range of both.
    merged.load_range(param.param, up.offset - 3, 6, graph::DType::f64, part.data());
    EXPECT_TRUE(std::equal(part.begin(), part.begin() + 6, want.begin() + up.offset - 3));
  }
}

/// Returns scale * B A of a target, all elements.
std::vector<double> product_of(const AdapterWeights& adapter, const models::LoraTarget& target) {
  const auto size = [](const graph::Dims& dims) {
    int64_t elements = 1;
    for (const int64_t dim : dims) {
      elements *= dim;
    }
    return elements;
  };
  const int64_t columns = target.a_dims.back();
  std::vector<double> all(
      static_cast<size_t>(size(target.b_dims) / int64_t{target.b_dims.back()} * columns));
  adapter.add_to(target.weight, 0, std::ssize(all), all.data());
  return all;
}

void expect_same_experts(const AdapterWeights& stacked, const AdapterWeights& split) {
  ASSERT_EQ(split.plan().targets.size(), stacked.plan().targets.size());
  for (size_t i = 0; i < split.plan().targets.size(); ++i) {
    const models::LoraTarget& one = stacked.plan().targets[i];
    const models::LoraTarget& other = split.plan().targets[i];
    ASSERT_EQ(one.weight, other.weight);
    if (one.expert) {
      EXPECT_EQ(product_of(stacked, one), product_of(split, other)) << one.weight;
    }
  }
}

/// Adds the shapes of an adapter of q_proj in both layers of small_config("qwen3_moe").
void add_query_projections(std::map<std::string, graph::Dims>* shapes) {
  constexpr int64_t kQuery = 40;
  for (const std::string layer : {"0", "1"}) {
    const std::string module = "base_model.model.model.layers." + layer + ".self_attn.q_proj";
    (*shapes)[module + ".lora_A.weight"] = {kRank, kHidden};
    (*shapes)[module + ".lora_B.weight"] = {kQuery, kRank};
  }
}

TEST_F(AdapterFolder, StackedExpertsAreSplit) {
  write_config(R"(, "peft_version": "0.19.0", "target_modules": ["q_proj"],)"
               R"( "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])");
  const std::string layers = "base_model.model.model.layers.";
  constexpr int64_t kFlat = kRank * kExperts;
  std::map<std::string, graph::Dims> shapes = {
      {layers + "0.mlp.experts.base_layer.lora_A.weight", {kFlat, kHidden}},
      {layers + "0.mlp.experts.base_layer.lora_B.weight", {2 * kWide, kFlat}},
      {layers + "0.mlp.experts.lora_A.weight", {kFlat, kWide}},
      {layers + "0.mlp.experts.lora_B.weight", {kHidden, kFlat}}};
  add_query_projections(&shapes);
  save_random(shapes);
  const models::ModelConfig config = small_config("qwen3_moe");
  const AdapterWeights stacked(folder_.path(), config);
  // q_proj of two layers, and three projections of four experts.
  EXPECT_EQ(save_expert_modules(stacked, config, "/base", folder_ / "split"), 2 * (2 + 3 * 4));
  const AdapterWeights split(folder_ / "split", config);
  EXPECT_EQ(read_adapter_config(folder_ / "split").base, "/base");
  EXPECT_TRUE(split.plan().layout == models::ExpertLayout::modules);
  expect_same_experts(stacked, split);
  EXPECT_NE(error_of([&] { save_expert_modules(split, config, "", folder_ / "again"); }), "");
}

/// A regex of targets would match the modules that experts become, too: modules are named instead.
TEST_F(AdapterFolder, SplitExpertsReplaceAPatternByItsModules) {
  write_config(R"(, "peft_version": "0.19.0", "target_modules": ".*q_proj",)"
               R"( "target_parameters": ["mlp.experts.gate_up_proj"])");
  const std::string layers = "base_model.model.model.layers.";
  constexpr int64_t kFlat = kRank * kExperts;
  std::map<std::string, graph::Dims> shapes = {
      {layers + "0.mlp.experts.lora_A.weight", {kFlat, kHidden}},
      {layers + "0.mlp.experts.lora_B.weight", {2 * kWide, kFlat}}};
  add_query_projections(&shapes);
  save_random(shapes);
  const models::ModelConfig config = small_config("qwen3_moe");
  const AdapterWeights stacked(folder_.path(), config);
  EXPECT_FALSE(stacked.plan().lora.target_pattern.empty());
  save_expert_modules(stacked, config, "/base", folder_ / "split");
  const AdapterWeights split(folder_ / "split", config);
  EXPECT_EQ(split.plan().lora.target_pattern, "");
  expect_same_experts(stacked, split);
}

/// Layer 1 has no experts, and projections of the names that those of experts have. In the file of
/// stacked experts such a name is of layer 1 alone.
TEST_F(AdapterFolder, SplitExpertsShareNoNameWithOtherLayers) {
  write_config(R"(, "peft_version": "0.19.0", "target_modules": ["down_proj"],)"
               R"( "rank_pattern": {"down_proj": 1}, "modules_to_save": ["gate_proj", "up_proj"],)"
               R"( "target_parameters": ["mlp.experts.gate_up_proj"])");
  const std::string layers = "base_model.model.model.layers.";
  constexpr int64_t kDense = 20, kFlat = kRank * kExperts;
  save_random({{layers + "0.mlp.experts.lora_A.weight", {kFlat, kHidden}},
               {layers + "0.mlp.experts.lora_B.weight", {2 * kWide, kFlat}},
               {layers + "1.mlp.down_proj.lora_A.weight", {1, kDense}},
               {layers + "1.mlp.down_proj.lora_B.weight", {kHidden, 1}},
               {layers + "1.mlp.gate_proj.weight", {kDense, kHidden}},
               {layers + "1.mlp.up_proj.weight", {kDense, kHidden}}});
  const models::ModelConfig config = small_config("qwen3_moe");
  const AdapterWeights stacked(folder_.path(), config);
  // A and B of two projections of four experts and of down_proj; two modules in full.
  EXPECT_EQ(save_expert_modules(stacked, config, "/base", folder_ / "split"), 2 * (2 * 4 + 1) + 2);
  const AdapterWeights split(folder_ / "split", config);
  expect_same_experts(stacked, split);
  EXPECT_EQ(split.plan().saved, stacked.plan().saved);
  EXPECT_EQ(split.plan().lora.target_modules.front(), "model.layers.1.mlp.down_proj");
}

}  // namespace
}  // namespace hocket::checkpoint
